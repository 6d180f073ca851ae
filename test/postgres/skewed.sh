#!/bin/bash
# SPDX-License-Identifier: MIT
# Runs a test with a PostgreSQL store whose clock the test can move: skewed.sh URI PROGRAM [ARG]...; @@ becomes the URI.
# The test's own clock_timestamp() precedes the server's, because the search path names pg_catalog after the test's
# schema.
set -u
uri=$1
shift
psql -X -q -v ON_ERROR_STOP=1 "$uri" <<'END_OF_SQL' || exit 1
CREATE SCHEMA dibs;
CREATE TABLE dibs.test_clock (ms bigint NOT NULL);
INSERT INTO dibs.test_clock VALUES (0);
CREATE FUNCTION dibs.clock_timestamp() RETURNS timestamptz VOLATILE LANGUAGE sql AS
  $$ SELECT pg_catalog.clock_timestamp() + ms * interval '1 ms' FROM dibs.test_clock $$;
END_OF_SQL
uri="postgresql://${uri#*://}?options=-csearch_path%3Dpg_catalog"
args=()
for arg; do args+=("${arg//@@/"$uri"}"); done
exec "${args[@]}"

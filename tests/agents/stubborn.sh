# An agent as they really are: a shell that starts a child which ignores TERM, and a grandchild in a session of its own.
# It beats for a while, then falls silent and stays.   usage: stubborn.sh SECONDS
trap '' TERM
setsid sleep 1000 &
(trap '' TERM INT HUP; exec sleep 1001) &
end=$(($(date +%s) + ${1:-2}))
while [ "$(date +%s)" -lt "$end" ]; do
    agent-watchdog beat --note working
    sleep 0.3
done
while :; do sleep 1002; done

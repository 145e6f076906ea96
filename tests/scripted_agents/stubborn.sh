# An agent as they really are: a shell that starts a child which ignores TERM, and a grandchild in a session of its own.
# It beats for two seconds, or until a file is in the world, then falls silent and stays.   usage: stubborn.sh [FILE]
trap '' TERM
setsid sleep 1000 &
(trap '' TERM INT HUP; exec sleep 1001) &
end=$(($(date +%s) + 2))
beats() {
    if [ "$1" ]; then ! [ -e "$WORLD/$1" ]; else [ "$(date +%s)" -lt "$end" ]; fi
}
while beats "$1"; do
    agent-watchdog beat --note working
    sleep 0.3
done
while :; do sleep 1002; done

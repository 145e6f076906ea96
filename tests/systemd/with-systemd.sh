#!/bin/bash
# with-systemd.sh CMD...: boot a throw-away systemd (overlay of this machine's own root), run CMD inside, power off, clean up.
# Env: NSPAWN_ARGS (e.g. "--bind-ro=$PWD:/src"), BOOT_TIMEOUT (s, default 60), SYSTEMD_ROOT (a debootstrapped tree instead of the overlay)
# Exit: CMD's status; 69 = systemd could not be booted (callers turn that into a skip or a failure).
set -uo pipefail
[ "$(id -u)" = 0 ] || { echo "needs root" >&2; exit 69; }
command -v systemd-nspawn >/dev/null || { echo "needs systemd-container" >&2; exit 69; }
W=$(mktemp -d /var/tmp/wdsysd.XXXXXX); CG=wdtest-$$; N=
cleanup() {
  [ -n "$N" ] && kill -0 "$N" 2>/dev/null && { kill -KILL "$N"; wait "$N" 2>/dev/null; }
  for base in /sys/fs/cgroup/unified /sys/fs/cgroup; do
    [ -d "$base/$CG" ] || continue
    echo 1 > "$base/$CG/cgroup.kill" 2>/dev/null
    for _ in $(seq 50); do find "$base/$CG" -depth -type d -exec rmdir {} + 2>/dev/null; [ -d "$base/$CG" ] || break; sleep 0.1; done
  done
  rm -rf --one-file-system "$W"
}
trap cleanup EXIT
export W CG
unshare --mount --propagation private bash -euc '
  mountpoint -q /sys/fs/cgroup && umount -R /sys/fs/cgroup
  mount -t cgroup2 cgroup2 /sys/fs/cgroup
  mkdir /sys/fs/cgroup/$CG; echo $$ > /sys/fs/cgroup/$CG/cgroup.procs
  mkdir $W/o; mount -t tmpfs -o size=1g,mode=755 tmpfs $W/o; mkdir $W/o/up $W/o/work $W/o/root
  mount -t overlay overlay -o lowerdir=${SYSTEMD_ROOT:-/},upperdir=$W/o/up,workdir=$W/o/work $W/o/root
  R=$W/o/root
  rm -rf $R/etc/systemd/system/*.wants/* $R/etc/rc?.d/* $R/var/log/journal
  : > $R/etc/machine-id; : > $R/etc/fstab; mkdir -p $R/var/log/journal
  chmod 711 $R/root                      # lets other users execute a Python below root's home
  exec systemd-nspawn -D $R -b --machine=$CG --register=no --keep-unit --console=pipe --link-journal=no \
       --resolv-conf=off --timezone=off --private-network '"${NSPAWN_ARGS:-}" </dev/null >"$W/console.log" 2>&1 & N=$!
s=; L=
for _ in $(seq $((${BOOT_TIMEOUT:-60} * 10))); do
  kill -0 $N 2>/dev/null || break
  L=$(ps --ppid $N -o pid=,comm= | awk '$2=="systemd"{print $1; exit}')
  [ -n "$L" ] && s=$(nsenter -t "$L" -a systemctl is-system-running 2>/dev/null)
  case $s in running|degraded) break;; esac
  sleep 0.1
done
case $s in running|degraded) ;; *) echo "systemd did not boot (state: ${s:-none})" >&2; cat "$W/console.log" >&2; exit 69;; esac
echo "booted: $s, leader $L, $(nsenter -t "$L" -a systemctl --version | head -1)" >&2
# run inside the container's own cgroup tree (a plain nsenter would stay in the caller's cgroup)
nsenter -t "$L" -a systemd-run --quiet --wait --pipe --service-type=exec -p Delegate=yes --collect --unit=wdtest-payload -- "$@" </dev/null
rc=$?
nsenter -t "$L" -a systemctl --no-block poweroff >/dev/null 2>&1
for _ in $(seq 150); do kill -0 $N 2>/dev/null || break; sleep 0.1; done
exit $rc

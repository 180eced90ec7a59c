#!/bin/sh
# contained.sh ROOT PROGRAM... : a program as a service of deploy/ has it, without a container engine: a root file system
# of its own (this machine's, read-only), user 10001, no capabilities. Mounts come from the environment, as lines:
#   MOUNTS="SOURCE TARGET ro|rw"   TMPFS="TARGET"   WORKDIR
set -e
root=$1
shift
mkdir -p "$root"
mount -t tmpfs none "$root"
mkdir "$root/upper" "$root/work" "$root/all"
mount -t overlay overlay -o "lowerdir=/,upperdir=$root/upper,workdir=$root/work" "$root/all"
root=$root/all
chmod 755 "$root/root"
printf '#!/bin/sh\nexec %s -m fedprior "$@"\n' "$PYTHON" >"$root/usr/local/bin/fedprior"
chmod 755 "$root/usr/local/bin/fedprior"
echo "127.0.0.1 localhost server" >"$root/etc/hosts"
mount --rbind /proc "$root/proc"
mount --rbind /dev "$root/dev"
echo "$MOUNTS" | while read -r source target mode; do
  [ -n "$source" ] || continue
  if [ -d "$source" ]; then mkdir -p "$root$target"; else touch "$root$target"; fi
  mount --bind "$source" "$root$target"
  mount -o "remount,bind,$mode" "$root$target"
done
for target in $TMPFS; do mount -t tmpfs -o mode=1777 none "$root$target"; done
mount -o remount,ro "$root"
exec chroot "$root" setpriv --reuid=10001 --regid=10001 --clear-groups --no-new-privs --bounding-set=-all \
  sh -c 'cd "$0" && exec "$@"' "$WORKDIR" "$@"

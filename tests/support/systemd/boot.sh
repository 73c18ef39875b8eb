#!/bin/bash
# Becomes a systemd manager that can change nothing of this machine: run it by
#   unshare --fork --pid --kill-child --mount --mount-proc --uts --ipc bash boot.sh SHARED
# as root. What it sees of the disk is read-only but for tmpfs on /run, /tmp, /var and /etc (a copy);
# SHARED appears as /srv; SHARED/lib is /var/lib/soak, and SHARED/etc, where there is one, is /etc: they
# outlive a boot. There is no unit that sets up a machine: each is masked.
set -euo pipefail
shared=$1
mount --make-rprivate /
mount --bind "$shared" /srv
mount -o remount,bind,ro /
mount -t tmpfs -o mode=755 tmpfs /run
mount -t tmpfs -o mode=1777 tmpfs /tmp
mkdir /run/etc
if [ -d /srv/etc ]; then
  cp -a /srv/etc/. /run/etc
else
  cp -a /etc/. /run/etc
  rm -rf /run/etc/systemd/system
  mkdir /run/etc/systemd/system
fi
mount -t tmpfs -o mode=755 tmpfs /etc
cp -a /run/etc/. /etc
rm -rf /run/etc
mount -t tmpfs -o mode=755 tmpfs /var
mkdir -p /var/lib/soak /var/cache /var/log /srv/lib
mount --bind /srv/lib /var/lib/soak
mkdir -m 1777 /var/tmp
ln -s /run /var/run
: > /etc/fstab
printf '[Journal]\nStorage=volatile\nReadKMsg=no\nForwardToConsole=no\n' > /etc/systemd/journald.conf
for path in /lib/systemd/system/{sysinit,local-fs,sockets,timers,multi-user,graphical}.target.wants/*; do
  name=$(basename "$path")
  case $name in
    systemd-journald* | dbus.socket) ;;
    *) ln -sf /dev/null "/etc/systemd/system/$name" ;;
  esac
done
for name in systemd-tmpfiles-setup.service systemd-tmpfiles-setup-dev.service systemd-tmpfiles-clean.timer \
  systemd-tmpfiles-clean.service systemd-udevd.service systemd-udevd-kernel.socket \
  systemd-udevd-control.socket systemd-udev-trigger.service systemd-sysctl.service \
  systemd-modules-load.service systemd-remount-fs.service systemd-networkd.service getty.target \
  systemd-random-seed.service systemd-timesyncd.service systemd-logind.service swap.target \
  systemd-journald-audit.socket systemd-journal-flush.service dev-hugepages.mount poweroff.target \
  reboot.target halt.target exit.target kexec.target umount.target; do
  ln -sf /dev/null "/etc/systemd/system/$name"
done
mount --make-rshared / # among what is in here: services get their credentials by it
export container=unshare
exec /lib/systemd/systemd --system --unit=multi-user.target --show-status=no --log-target=journal

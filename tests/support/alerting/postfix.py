"""A real postfix for a test: settings, spool and mailboxes of its own, one port on loopback."""

from __future__ import annotations

import email
import email.policy
import os
import pwd
import shutil
import socketserver
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.message import EmailMessage
from pathlib import Path

import pytest

from soak.service import children
from tests.support.alerting.mail_server import free_port

MASTER = Path("/usr/lib/postfix/sbin/master")
MAIN = """\
compatibility_level = 3.6
queue_directory = {folder}/spool
data_directory = {folder}/kept
command_directory = /usr/sbin
daemon_directory = {daemons}
mail_owner = postfix
setgid_group = postdrop
maillog_file = {folder}/mail.log
maillog_file_prefixes = {folder}
myhostname = mail.example.org
inet_interfaces = 127.0.0.1
inet_protocols = ipv4
mynetworks = 127.0.0.0/8
mydestination =
alias_maps =
alias_database =
local_recipient_maps =
virtual_mailbox_domains = example.org
virtual_mailbox_base = {folder}/mail
virtual_mailbox_maps = inline:{{ a@example.org=a/ b@example.org=b/ }}
virtual_uid_maps = static:{user}
virtual_gid_maps = static:{group}
virtual_minimum_uid = 1
smtpd_tls_security_level = encrypt
smtpd_tls_cert_file = {certificate}
smtpd_tls_key_file = {key}
smtpd_recipient_restrictions = {restrictions}permit_mynetworks,reject
"""
SERVICES = """\
127.0.0.1:{port} inet n - n - - smtpd
cleanup unix n - n - 0 cleanup
qmgr unix n - n 300 1 qmgr
tlsmgr unix - - n 1000? 1 tlsmgr
rewrite unix - - n - - trivial-rewrite
bounce unix - - n - 0 bounce
defer unix - - n - 0 bounce
trace unix - - n - 0 bounce
error unix - - n - - error
retry unix - - n - - error
proxymap unix - - n - - proxymap
anvil unix - - n - 1 anvil
virtual unix - n n - - virtual
postlog unix-dgram n - n - 1 postlogd
"""


@dataclass(frozen=True, slots=True)
class Postfix:
    port: int
    folder: Path

    def mails(self, name: str) -> list[EmailMessage]:
        """Return what lies in a mailbox."""
        found = []
        for path in sorted((self.folder / "mail" / name / "new").glob("*")):
            mail = email.message_from_bytes(path.read_bytes(), policy=email.policy.default)
            assert isinstance(mail, EmailMessage)
            found.append(mail)
        return found

    def log(self) -> str:
        path = self.folder / "mail.log"
        return path.read_text() if path.is_file() else ""


@contextmanager
def postfix(certificate: tuple[Path, Path], policy: Greylist | None = None) -> Iterator[Postfix]:
    """Run it until the block ends; skip where there is none, or no root to start it."""
    if not MASTER.exists():
        pytest.skip("no postfix here: `make packages` installs it")
    if os.geteuid():
        pytest.skip("postfix is started by root alone")
    owner = pwd.getpwnam("postfix")
    # not below pytest's own folder, which the user postfix may not enter
    folder = Path(tempfile.mkdtemp(prefix="soak-postfix-"))
    settings = folder / "settings"
    try:
        folder.chmod(0o755)
        for name, user in (("spool", 0), ("kept", owner.pw_uid), ("mail", owner.pw_uid)):
            (folder / name).mkdir()
            os.chown(folder / name, user, owner.pw_gid if user else 0)
        settings.mkdir()
        port = free_port()
        asked = f"check_policy_service inet:127.0.0.1:{policy.port}," if policy else ""
        (settings / "main.cf").write_text(
            MAIN.format(
                folder=folder,
                daemons=MASTER.parent,
                user=owner.pw_uid,
                group=owner.pw_gid,
                certificate=certificate[0],
                key=certificate[1],
                restrictions=asked,
            )
        )
        (settings / "master.cf").write_text(SERVICES.format(port=port))
        environment = {**os.environ, "MAIL_CONFIG": str(settings)}
        subprocess.run(  # makes the folders of the spool
            ["/usr/sbin/postfix", "-c", str(settings), "check"],
            check=True,
            env=environment,
            timeout=60,
            capture_output=True,
        )
        process = subprocess.Popen(
            children.with_death_signal([str(MASTER), "-c", str(settings), "-d"]),
            env=environment,
            start_new_session=True,
        )
        try:
            yield Postfix(port, folder)
        finally:
            process.terminate()
            process.wait(30)
    finally:
        shutil.rmtree(folder)


@dataclass(slots=True)
class Greylist:
    """A policy service as postgrey is one: whoever comes for the first time is to come again."""

    port: int = 0
    asked: list[str] = field(default_factory=list)  # recipients, in order

    @contextmanager
    def serving(self) -> Iterator[Greylist]:
        greylist = self

        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                while request := _request(self.rfile):
                    recipient = request["recipient"]
                    is_known = recipient in greylist.asked
                    greylist.asked.append(recipient)
                    answer = "DUNNO" if is_known else "DEFER_IF_PERMIT greylisted, come again"
                    self.wfile.write(f"action={answer}\n\n".encode())

        with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
            server.daemon_threads = True
            self.port = server.server_address[1]
            thread = threading.Thread(target=server.serve_forever, args=(0.05,))
            thread.start()
            try:
                yield self
            finally:
                server.shutdown()
                thread.join()


def _request(lines: Iterator[bytes] | Sequence[bytes]) -> dict[str, str]:
    """Read one request: `name=value` lines up to an empty one."""
    request = {}
    for line in lines:
        name, _, value = line.decode().rstrip("\n").partition("=")
        if not name:
            break
        request[name] = value
    return request

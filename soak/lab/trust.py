"""Gives a Java that pip installed the certificate authorities and the proxy that this machine uses.

Such a runtime brings authorities of its own and knows nothing of a company's, which Python and its
package installer were told about.
"""

from __future__ import annotations

import hashlib
import ssl
import struct
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import getproxies

_JKS_MAGIC = 0xFEEDFEED
_JKS_VERSION = 2
_TRUSTED = 2  # the tag of an entry that holds a certificate and no key
_PASSWORD = "changeit"  # noqa: S105 - Java's own default; public certificates are no secret


def certificates() -> list[bytes]:
    """Return the authorities that Python trusts here, DER; `SSL_CERT_FILE` is heeded."""
    context = ssl.create_default_context()
    loaded = context.get_ca_certs(binary_form=True)
    folder = ssl.get_default_verify_paths().capath
    if not loaded and folder:  # OpenSSL reads a folder only on demand
        for file in sorted(Path(folder).iterdir()):
            try:
                context.load_verify_locations(file)
            except (ssl.SSLError, OSError):
                continue  # a README or a dangling link among certificates
        loaded = context.get_ca_certs(binary_form=True)
    return loaded


def write_store(path: Path, authorities: list[bytes]) -> None:
    """Write a JKS file, which every Java reads as a trust store without a password.

    The layout is the one that `sun.security.provider.JavaKeyStore` documents in its source.
    """
    body = struct.pack(">III", _JKS_MAGIC, _JKS_VERSION, len(authorities))
    for number, certificate in enumerate(authorities):
        body += struct.pack(">I", _TRUSTED) + _text(f"authority-{number}") + struct.pack(">q", 0)
        body += _text("X.509") + struct.pack(">I", len(certificate)) + certificate
    salted = _PASSWORD.encode("utf-16-be") + b"Mighty Aphrodite" + body
    path.write_bytes(body + hashlib.sha1(salted).digest())  # noqa: S324 - the format's checksum


def proxy_options() -> list[str]:
    """Return Java's options for the proxies in `https_proxy` and `http_proxy`, if any."""
    options = []
    for scheme, address in getproxies().items():
        proxy = urlsplit(address)
        if scheme in {"http", "https"} and proxy.hostname:
            options.append(f"-D{scheme}.proxyHost={proxy.hostname}")
            options.append(f"-D{scheme}.proxyPort={proxy.port or 80}")
    return options


def _text(value: str) -> bytes:
    encoded = value.encode("utf-8")
    return struct.pack(">H", len(encoded)) + encoded

"""A certificate authority for one federation, the server's certificate, and a key for every site."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from fedprior.errors import FedpriorError
from fedprior.files import write_bytes

DAYS = 730
BEFORE = timedelta(minutes=10)
"""Certificates are valid from a little before now, since clocks differ."""


def secret(path: Path, content: bytes) -> None:
    """Write a private key that its owner alone may read."""
    write_bytes(path, b"")
    os.chmod(path, 0o600)
    with path.open("wb") as file:
        file.write(content)


def make_authority(folder: Path, hosts: Iterable[str]) -> None:
    """`ca.crt`, `server.crt` and `server.key`; the authority's own key is not kept: nobody can sign with it again."""
    x509, hashes, ec, serialization = _cryptography()
    authority, server = (ec.generate_private_key(ec.SECP384R1()) for _ in range(2))
    issuer = _name(x509, "fedprior federation authority")
    usage = x509.BasicConstraints(ca=True, path_length=0)
    ca = _builder(x509, issuer, issuer, authority).add_extension(usage, critical=True)
    ca = ca.add_extension(_key_usage(x509, signs=True), critical=True)
    ca = ca.add_extension(x509.SubjectKeyIdentifier.from_public_key(authority.public_key()), critical=False)
    own = _builder(x509, _name(x509, "fedprior federation server"), issuer, server)
    own = own.add_extension(x509.SubjectAlternativeName(_alternatives(x509, hosts)), critical=False)
    own = own.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    own = own.add_extension(_key_usage(x509, signs=False), critical=True)
    extended = x509.ExtendedKeyUsage([x509.oid.ExtendedKeyUsageOID.SERVER_AUTH])
    own = own.add_extension(extended, critical=False)
    identifier = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key())
    own = own.add_extension(identifier, critical=False)
    pem = serialization.Encoding.PEM
    write_bytes(folder / "ca.crt", ca.sign(authority, hashes.SHA384()).public_bytes(pem))
    write_bytes(folder / "server.crt", own.sign(authority, hashes.SHA384()).public_bytes(pem))
    form, plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    secret(folder / "server.key", server.private_bytes(pem, form, plain))


def make_site_key(folder: Path) -> bytes:
    """`site.key`, which must stay at the site, and `site.pub`, which the server registers; returns the latter."""
    _, _, ec, serialization = _cryptography()
    key = ec.generate_private_key(ec.SECP384R1())
    pem, form = serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH
    secret(folder / "site.key", key.private_bytes(pem, form, serialization.NoEncryption()))
    encoding, shape = serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    public: bytes = key.public_key().public_bytes(encoding, shape) + b"\n"
    write_bytes(folder / "site.pub", public)
    return public


def validity(path: Path) -> tuple[datetime, datetime, list[str]]:
    """From when until when a certificate is valid, and for which names."""
    x509, *_ = _cryptography()
    try:
        found = x509.load_pem_x509_certificate(path.read_bytes())
        names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        told = [str(name.value) for name in names]
    except x509.ExtensionNotFound:
        told = []
    except (OSError, ValueError) as error:
        raise FedpriorError(f"'{path}' is not a certificate that can be read: {error}.") from None
    return found.not_valid_before_utc, found.not_valid_after_utc, told


def check_dates(path: Path) -> None:
    """Refuse a certificate that is not valid now."""
    first, last, _ = validity(path)
    if not first <= datetime.now(UTC) <= last:
        raise FedpriorError(
            f"'{path}' is valid from {first:%Y-%m-%d} to {last:%Y-%m-%d}, which is not now: check this machine's "
            "clock, or set the federation up again."
        )


def _builder(x509: Any, subject: Any, issuer: Any, key: Any) -> Any:
    now = datetime.now(UTC)
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key.public_key())
    builder = builder.serial_number(x509.random_serial_number())
    return builder.not_valid_before(now - BEFORE).not_valid_after(now + timedelta(days=DAYS))


def _name(x509: Any, common: str) -> Any:
    return x509.Name([x509.NameAttribute(x509.oid.NameOID.COMMON_NAME, common[:64])])


def _key_usage(x509: Any, *, signs: bool) -> Any:
    no = ("content_commitment", "key_encipherment", "data_encipherment", "key_agreement", "encipher_only")
    off = dict.fromkeys((*no, "decipher_only"), False)
    return x509.KeyUsage(digital_signature=True, key_cert_sign=signs, crl_sign=signs, **off)


def _alternatives(x509: Any, hosts: Iterable[str]) -> list[Any]:
    """The names or numbers that sites use, and this machine's own, for the commands that run here."""
    found = []
    for host in ("localhost", "127.0.0.1", *sorted(set(hosts) - {"localhost", "127.0.0.1"})):
        try:
            found.append(x509.IPAddress(ipaddress.ip_address(host)))
        except ValueError:
            found.append(x509.DNSName(host))
    return found


def _cryptography() -> tuple[Any, Any, Any, Any]:
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
    except ImportError:
        raise FedpriorError("a real federation needs Flower: install fedprior[flower].") from None
    return x509, hashes, ec, serialization

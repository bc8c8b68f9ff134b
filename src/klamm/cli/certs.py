"""`klamm certs`: a certificate authority for development, and certificates of nodes and clients, made by OpenSSL.

The files are those that ssl.keystore.location and ssl.truststore.location name: PEM, key and chain in one file.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from typing import Final

import click

from klamm.cli.command_errors import CommandRefusal, refuses
from klamm.cli.command_group import Noun
from klamm.cli.confirmation import ConfirmationPlan, show_dry_run

CA: Final = "ca.pem"
CA_KEY: Final = "ca.key"
CA_DAYS: Final = 3650
DAYS: Final = 825
"""The longest life that some TLS libraries accept of a server's certificate."""

_KEY: Final = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")

folder_option = click.option(
    "--dir", "folder", default="certs", show_default=True, metavar="DIR", help="Where the files are."
)
dry_run_option = click.option("--dry-run", is_flag=True, help="Show which files would be written.")
yes_option = click.option("-y", "--yes", is_flag=True, help="Accepted; files that exist are never replaced.")


@click.group(cls=Noun)
def certs() -> None:
    """Make certificates for development: an authority, nodes, clients."""


@certs.command("ca")
@folder_option
@dry_run_option
@yes_option
@refuses
def ca(*, folder: str, dry_run: bool, yes: bool) -> None:
    """Make an authority: ca.pem, which all nodes and clients trust, and ca.key, which signs."""
    del yes
    paths = os.path.join(folder, CA), os.path.join(folder, CA_KEY)
    if _may_write(paths, dry_run=dry_run):
        make_authority(folder)
        click.echo(f"Wrote {paths[0]} and {paths[1]}.")


def make_authority(folder: str) -> None:
    """Make ca.pem and ca.key."""
    path, key = os.path.join(folder, CA), os.path.join(folder, CA_KEY)
    os.makedirs(folder, mode=0o700, exist_ok=True)
    with _private():
        _openssl(
            *("req", "-x509", *_KEY, "-keyout", key, "-out", path, "-days", str(CA_DAYS)),
            *("-subj", "/CN=Klamm development authority", "-addext", "keyUsage=critical,keyCertSign,cRLSign"),
        )


@certs.command("node")
@click.argument("hosts", nargs=-1, required=True)
@click.option("--name", default="node", show_default=True, help="The common name, and the name of the file.")
@folder_option
@dry_run_option
@yes_option
@refuses
def node(*, hosts: tuple[str, ...], name: str, folder: str, dry_run: bool, yes: bool) -> None:
    """Make the certificate of a node that is reached by these host names and addresses."""
    del yes
    _issue_if_absent(folder, name, hosts, dry_run=dry_run)


@certs.command("client")
@click.argument("name")
@folder_option
@dry_run_option
@yes_option
@refuses
def client(*, name: str, folder: str, dry_run: bool, yes: bool) -> None:
    """Make the certificate of a client; its principal is User:CN=NAME."""
    del yes
    _issue_if_absent(folder, name, (), dry_run=dry_run)


def _issue_if_absent(folder: str, name: str, hosts: tuple[str, ...], *, dry_run: bool) -> None:
    if not name or any(character in name for character in "/\\\0\n=+,"):
        raise CommandRefusal(f"{name!r} cannot be a name here; write letters, digits, dots and dashes")
    path = os.path.join(folder, f"{name}.pem")
    if _may_write((path,), dry_run=dry_run):
        issue(folder, name, hosts)
        click.echo(f"Wrote {path}.")


def issue(folder: str, name: str, hosts: tuple[str, ...]) -> None:
    """Make NAME.pem, key and certificate, of a node that is reached by `hosts`, or of a client without any."""
    authority, authority_key = os.path.join(folder, CA), os.path.join(folder, CA_KEY)
    path = os.path.join(folder, f"{name}.pem")
    if not os.path.exists(authority_key):
        raise CommandRefusal(f"there is no authority in {folder}; make one with `klamm certs ca --dir {folder}`")
    with _private(), tempfile.TemporaryDirectory() as work:
        key, request, certificate, extensions = (os.path.join(work, file) for file in ("key", "csr", "crt", "ext"))
        with open(extensions, "w", encoding="utf-8") as file:
            file.write("basicConstraints=critical,CA:FALSE\nkeyUsage=critical,digitalSignature\n")
            file.write("extendedKeyUsage=serverAuth,clientAuth\n" if hosts else "extendedKeyUsage=clientAuth\n")
            if hosts:
                file.write(f"subjectAltName={','.join(map(_alternative_name, hosts))}\n")
        _openssl("req", *_KEY, "-keyout", key, "-out", request, "-subj", f"/CN={name}")
        _openssl(
            *("x509", "-req", "-in", request, "-CA", authority, "-CAkey", authority_key, "-days", str(DAYS)),
            *("-set_serial", f"0x{os.urandom(16).hex()}", "-extfile", extensions, "-out", certificate),
        )
        with open(path, "w", encoding="utf-8") as store:
            for part in (key, certificate):
                with open(part, encoding="utf-8") as file:
                    store.write(file.read())


def _alternative_name(host: str) -> str:
    try:
        return f"IP:{ipaddress.ip_address(host)}"
    except ValueError:
        if not host or any(character in host for character in ",\n= "):
            raise CommandRefusal(f"{host!r} is no host name or address") from None
        return f"DNS:{host}"


def _may_write(paths: tuple[str, ...], *, dry_run: bool) -> bool:
    for path in paths:
        # A new authority would make every certificate of the old one worthless.
        if os.path.exists(path):
            raise CommandRefusal(f"{path} exists; remove it first, or write another --dir")
    if dry_run:
        show_dry_run(ConfirmationPlan([("+", path) for path in paths]))
    return not dry_run


@contextlib.contextmanager
def _private() -> Iterator[None]:
    """Make the files that are written inside readable for this user only."""
    mask = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(mask)


def _openssl(*arguments: str) -> None:
    program = shutil.which("openssl")
    if program is None:
        raise CommandRefusal("the program openssl is not installed, which makes the keys; install it")
    done = subprocess.run([program, *arguments], capture_output=True, text=True, check=False)  # noqa: S603 - no shell
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["no reason given"]
        raise CommandRefusal(f"openssl {arguments[0]} failed: {lines[-1]}")

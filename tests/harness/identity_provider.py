"""An identity provider inside the test: it signs tokens, publishes its keys, and issues tokens to clients over HTTP."""

import base64
import contextlib
import json
import ssl
import threading
import time
import urllib.parse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

from klamm.security.http import RESPONSE_BYTES_MAX

JWT_BEARER = "urn:ietf:params:oauth:grant-type:jwt-bearer"
_CURVES: dict[str, Any] = {"ES256": ec.SECP256R1, "ES384": ec.SECP384R1, "ES512": ec.SECP521R1}


class SigningKey:
    """A key pair with an id."""

    def __init__(self, key_id: str, algorithm: str = "ES256", bits: int = 2048) -> None:
        self.key_id = key_id
        self.algorithm = algorithm
        self._private: Any = (
            ec.generate_private_key(_CURVES[algorithm]())
            if algorithm in _CURVES
            else rsa.generate_private_key(65537, bits)
        )

    def sign(self, claims: dict[str, Any], algorithm: str | None = None, **header: Any) -> str:
        headers = {"kid": self.key_id, **header}
        return jwt.encode(
            claims,
            self._private,
            algorithm or self.algorithm,
            headers={name: value for name, value in headers.items() if value is not None},
        )

    @property
    def public(self) -> dict[str, Any]:
        """The entry of a key set."""
        algorithm = jwt.get_algorithm_by_name(self.algorithm)
        return {**json.loads(algorithm.to_jwk(self._private.public_key())), "kid": self.key_id, "use": "sig"}

    def private_pem(self, password: bytes | None = None) -> bytes:
        cipher = BestAvailableEncryption(password) if password else NoEncryption()
        pem: bytes = self._private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, cipher)
        return pem

    @property
    def public_pem(self) -> bytes:
        return self._private.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def key_set(*keys: SigningKey) -> bytes:
    return json.dumps({"keys": [key.public for key in keys]}).encode()


def claims_of(subject: str, lifetime_s: float = 3600, **claims: Any) -> dict[str, Any]:
    now = time.time()
    return {"sub": subject, "iat": int(now), "exp": now + lifetime_s, **claims}


class IdentityProvider:
    """Serves /keys and /token on a free port; clients are users whose secret is their name and "-secret"."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self.key = SigningKey("first")
        self.keys = [self.key]
        self.lifetime_s = 3600.0
        self.tokens_issued = 0
        self.keys_served = 0
        self.keys_released = threading.Event()
        """Clear it to hold requests for the keys until it is set."""
        self.keys_released.set()
        self.failures_left = 0
        self.forms: list[dict[str, str]] = []
        self.client_keys: dict[str, bytes] = {}
        """By issuer: the public key (PEM) with which its assertions are verified."""
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        if tls is not None:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
        self.address = f"http{'s' if tls else ''}://127.0.0.1:{self._server.server_address[1]}"
        self.keys_url = f"{self.address}/keys"
        self.token_url = f"{self.address}/token"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(10)

    def rotate(self) -> None:
        """Sign with a new key, and publish it beside the old ones."""
        self.key = SigningKey(f"key {len(self.keys) + 1}")
        self.keys.append(self.key)

    def issue(self, subject: str, lifetime_s: float | None = None, **claims: Any) -> str:
        return self.key.sign(claims_of(subject, self.lifetime_s if lifetime_s is None else lifetime_s, **claims))

    def _answer_token(self, authorization: str, form: dict[str, str]) -> tuple[int, dict[str, Any]]:
        self.forms.append(form)
        if form.get("grant_type") == JWT_BEARER:
            return self._answer_assertion(form)
        user, _, secret = base64.b64decode(authorization.removeprefix("Basic ")).decode().partition(":")
        if form.get("grant_type") != "client_credentials" or secret != f"{user}-secret":
            return 401, {"error": "invalid_client"}
        self.tokens_issued += 1
        # Java's clients refuse an empty scope.
        token = self.issue(user, **({"scope": form["scope"]} if form.get("scope") else {}))
        return 200, {"access_token": token, "token_type": "Bearer", "expires_in": int(self.lifetime_s)}

    def _answer_assertion(self, form: dict[str, str]) -> tuple[int, dict[str, Any]]:
        """Answer with a token for the subject of an assertion that a client has signed (RFC 7523)."""
        issuer = jwt.decode(form["assertion"], options={"verify_signature": False}).get("iss")
        try:
            claims = jwt.decode(
                form["assertion"], self.client_keys[issuer], ["RS256", "ES256"], audience=self.token_url,
                options={"require": ["exp", "iat", "nbf", "sub"]},
            )  # fmt: skip
        except (KeyError, jwt.InvalidTokenError) as error:
            return 400, {"error": "invalid_grant", "error_description": str(error)}
        self.tokens_issued += 1
        return 200, {"access_token": self.issue(claims["sub"]), "expires_in": int(self.lifetime_s)}

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        provider = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                if self.path == "/redirect":
                    self.send_response(302)
                    self.send_header("Location", provider.keys_url)
                    self.send_header("Content-Length", "0")
                    self.end_headers()
                    return
                if self.path == "/endless":
                    with contextlib.suppress(OSError):
                        self._send(200, bytes(RESPONSE_BYTES_MAX + 100_000))
                    return
                provider.keys_released.wait()
                provider.keys_served += 1
                self._send(200, key_set(*provider.keys))

            def do_POST(self) -> None:
                text = self.rfile.read(int(self.headers["Content-Length"])).decode()
                form = {name: values[0] for name, values in urllib.parse.parse_qs(text).items()}
                if provider.failures_left:
                    provider.failures_left -= 1
                    self._send(503, b"{}")
                    return
                status, answer = provider._answer_token(self.headers.get("Authorization", ""), form)
                self._send(status, json.dumps(answer).encode())

            def _send(self, status: int, body: bytes) -> None:
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        return Handler

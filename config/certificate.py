"""Whether TLS_CERT and TLS_KEY are there and belong together: HAProxy would say so only at its start."""

from __future__ import annotations

from pathlib import Path

from config.errors import ConfigError


def read_certificate(cert: str, key: str) -> tuple[str, str]:
    """Both files, absolute; what is not given stays so."""
    for name, file in (("TLS_CERT", cert), ("TLS_KEY", key)):
        try:
            if file:
                Path(file).read_bytes()
        except OSError as problem:
            raise ConfigError(
                f"{name} must be a file that can be read: got {Path(file)}: {problem.strerror}"
            ) from problem
    if cert and key:
        import ssl  # here, because nothing else of planning needs it

        try:
            # A password would be asked for at the terminal, by HAProxy too.
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(cert, key, password="")
        except (ssl.SSLError, ValueError) as problem:
            raise ConfigError(
                "TLS_CERT and TLS_KEY must be a certificate and its own key without a password (PEM): "
                f"got {cert} and {key}: {problem}"
            ) from problem
    return tuple(file and str(Path(file).absolute()) for file in (cert, key))  # type: ignore[return-value]

"""The proxy in front of a SuperLink: it passes what sites need, and refuses the interface that runs code at them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

CONTAINER: Mapping[str, Any] = {
    "listen": 8443,
    "upstream": "server:8000",
    "certificates": "/certificates",
    "temporary": "/tmp",
}
"""As in deploy/server.compose.yaml."""


def nginx(listen: int, upstream: str, certificates: str, temporary: str) -> str:
    """A configuration for nginx, to be run by any user: `nginx -c FILE -g 'daemon off;'`."""
    return f"""# Exposes Flower's fleet interface alone: the control interface on the same port asks for no credential.
pid {temporary}/nginx.pid;
error_log stderr;
events {{}}
http {{
  access_log off;
  client_max_body_size 64m;
  client_body_temp_path {temporary}/body;
  proxy_temp_path {temporary}/proxy;
  fastcgi_temp_path {temporary}/fastcgi;
  uwsgi_temp_path {temporary}/uwsgi;
  scgi_temp_path {temporary}/scgi;
  server {{
    listen {listen} ssl;
    ssl_certificate {certificates}/server.crt;
    ssl_certificate_key {certificates}/server.key;
    ssl_protocols TLSv1.3;
    location /v1/fleet/ {{
      proxy_pass https://{upstream};
      proxy_ssl_trusted_certificate {certificates}/ca.crt;
      proxy_ssl_verify on;
      proxy_ssl_name localhost;
      proxy_read_timeout 300s;
      proxy_request_buffering off;
      proxy_http_version 1.1;
    }}
    location / {{
      return 403;
    }}
  }}
}}
"""

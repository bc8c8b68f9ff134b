"""The pages of the console, rendered on the server.

application   the ASGI application: sessions, rights, form tokens, headers, errors as pages
requests      a request with its session, cluster and form
rendering     templates, filters, compression
pages/        one file per noun; each adds its routes
templates/    HTML;  static/  style sheet, scripts, icon
"""

from klamm.console.app.application import ConsoleApp

__all__ = ["ConsoleApp"]

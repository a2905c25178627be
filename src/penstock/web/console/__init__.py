"""The web console: pages that the web server renders. Each request has the rights of the account that sends it."""

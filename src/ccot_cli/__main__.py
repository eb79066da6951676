"""`python -m ccot_cli`, the same as `ccot`."""

from ccot_cli.cli.app import main

main()

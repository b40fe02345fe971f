"""`--to zoom`, `--to youtube`, `--to webhook:URL`: finals posted to a web address."""

#!/bin/sh
# Known vulnerabilities of what an environment has, by pip-audit, without those of audit.ignore: audit.sh PYTHON
# Exit codes: 0 none, 1 some, 3 nobody could be asked.
set -eu
python=$1
ignore=$(dirname -- "$0")/audit.ignore

ask() {
	"$python" -m pip_audit --requirement /dev/stdin --no-deps --disable-pip --strict --progress-spinner off "$@"
}

# A mirror has packages, but no advisories: pip-audit then finds nothing. So ask for a package that has some.
if ! echo 'urllib3==1.24.1' | ask 2>&1 | grep -q '^urllib3 .*\(PYSEC\|GHSA\|CVE\)-'; then
	echo "audit: PyPI's advisories cannot be asked (a mirror has none); do: run it where pypi.org answers" >&2
	exit 3
fi
grep -v '^#' "$ignore"
# Advisories speak of 2.8.0, not of 2.8.0+cpu.
"$python" -c 'from importlib.metadata import distributions
for one in distributions(): print(one.name, one.version.partition("+")[0], sep="==")' |
	ask $(awk '/^[A-Z]/ { print "--ignore-vuln", $1 }' "$ignore")

#!/bin/sh
# Renews the locked files after a change in a *.in: lock.sh UV. Each set of packages (a folder) has one a purpose.
# torch, torchvision and the libraries of the CUDA build stay out: where they come from is a choice, and the
# CPU-only wheels have other hashes.
set -eu
uv=$(realpath -- "$1")
cd -- "$(dirname -- "$0")"
export UV_PYTHON_DOWNLOADS=never UV_CUSTOM_COMPILE_COMMAND="make lock"

compile() {
	"$uv" pip compile --quiet --universal --python-version "${python:-3.10}" --no-emit-index-url --no-annotate "$@"
}

compile --generate-hashes --no-deps haproxy.in -o haproxy.txt
for set in ipex current; do
	free=$(compile --no-header "$set/serve.in" | sed -nE 's/^((cuda|nvidia)-[a-z0-9-]+|triton|torch|torchvision)==.*/--no-emit-package \1/p')
	# shellcheck disable=SC2086
	compile --generate-hashes $free "$set/serve.in" -o "$set/serve.txt"
	for purpose in captum loadtest dev audit; do
		# shellcheck disable=SC2086
		compile --generate-hashes $free -c "$set/serve.in" -c "$set/serve.txt" "$purpose.in" -o "$set/$purpose.txt"
	done
done
# In both sets of packages these are the same (tests/setup/test_command.py).
compile --generate-hashes -c ipex/serve.txt first.in -o first.txt
# What `make benchmark` measures the kit beside.
# shellcheck disable=SC2086
compile --generate-hashes $free -c current/serve.in -c current/serve.txt current/litserve.in -o current/litserve.txt
# What tests of protocols and manifests need; schemathesis needs Python 3.11. Of kubectl's package the file alone.
without=$(printf -- '--no-emit-package %s ' aws-cdk-lib aws-cdk-asset-awscli-v1 aws-cdk-asset-node-proxy-agent-v6 \
	aws-cdk-cloud-assembly-schema cattrs constructs jsii publication typeguard)
python=3.11
# shellcheck disable=SC2086
compile --generate-hashes $without fleet.in -o fleet.txt

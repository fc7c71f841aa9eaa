#!/bin/sh
# Keys, cluster.toml and the first epoch of the cluster in docker-compose.yml, once: what exists stays as it is.
#
#   cluster-init.sh FOLDER --to URL [--chain-id ID]
#
# All keys are in one volume here. On machines of their own, each member has its own key alone.
set -eu
cd "$1"
shift

if [ ! -e cluster.toml ]; then
    rm -f a.key b.key c.key
    echo 'name = "compose"' > cluster.toml.new
    for member in a b c; do
        key=$(cardinal cluster keygen "$member.key")
        cat >> cluster.toml.new << END

[members.$member]
key = "$key"
address = "ingest-$member:40841"
bodies = "ingest-$member:40842"
metrics = "ingest-$member:9090"
END
    done
    mv cluster.toml.new cluster.toml
fi

# The status of a cluster can be read from its first epoch on.
if ! cardinal cluster status --cluster cluster.toml "$@" > /dev/null 2>&1; then
    cardinal cluster init --cluster cluster.toml --node-id a --key a.key --start 0 "$@"
fi

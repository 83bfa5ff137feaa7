#!/bin/sh
# An authority for a deployment's servers, and a certificate of it for each server: certificates.sh DIR NAME…, a NAME for each
# name or address by which clients and the other servers call it. Into DIR: ca.pem for everybody, server.pem and server.key
# for that server, ca.key for nobody but who makes the next one. Called again with the same DIR, it keeps the authority.
set -eu
[ $# -ge 2 ] || { echo "usage: $0 DIR NAME…" >&2; exit 2; }
umask 077
folder=$1
shift
mkdir -p "$folder"
cd "$folder"

# Of a server: it is called again before that, and each server gets its new one while the others run.
DAYS=825
# Of the authority: with it every certificate ends, also one that was made yesterday, and a new one is an outage or a week of
# carrying two about. So it outlives a few of them.
AUTHORITY_DAYS=3650
key() { openssl ecparam -name prime256v1 -genkey -noout -out "$1"; }

if [ ! -e ca.key ]; then
    key ca.key
    openssl req -x509 -new -key ca.key -sha256 -days "$AUTHORITY_DAYS" -subj "/CN=Fresco servers" -out ca.pem
fi
openssl x509 -in ca.pem -noout -checkend $((DAYS * 86400)) >/dev/null || {
    echo "the authority in $folder ends within $DAYS days, before what it would sign: make a new one in another folder," \
        "give its ca.pem and the old one, one behind the other, to everybody as ca.pem, and then sign with it" >&2
    exit 1
}
names=
for name in "$@"; do
    case $name in
        *:*) kind=IP ;;
        *[!0-9.]*) kind=DNS ;;
        *) kind=IP ;;
    esac
    names="${names:+$names,}$kind:$name"
done
key server.key
openssl req -new -key server.key -subj "/CN=$1" -out server.csr
# Both ways: between the nodes of a cluster each is a client of the others.
printf 'subjectAltName=%s\nextendedKeyUsage=serverAuth,clientAuth\n' "$names" >server.ext
openssl x509 -req -in server.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days "$DAYS" -sha256 -extfile server.ext -out server.pem
rm server.csr server.ext
chmod 644 ca.pem server.pem
echo "ca.pem server.pem server.key in $folder for $names"

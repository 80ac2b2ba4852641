#!/bin/sh
# Makes the CPython that lies in /opt/python3.12 at home there. Runs in the base image, without
# network. KVREG_PORTABLE=1: the copy is a standalone build, which finds its libraries by itself.
set -eu
cd /opt/python3.12

if [ "${KVREG_PORTABLE:-0}" != 1 ]; then
    for file in bin/python3.12 lib/libpython3*.so*; do
        if [ -f "$file" ] && [ ! -L "$file" ]; then strip --strip-unneeded "$file"; fi
    done
    # Strip first: it must not see what patchelf has moved.
    patchelf --set-rpath '$ORIGIN/../lib' bin/python3.12
    for file in lib/python3.12/lib-dynload/*.so; do
        strip --strip-unneeded "$file"
        patchelf --remove-rpath "$file"
    done
fi

# A module whose libraries the image lacks (tkinter's, say) would fail at its first import.
for file in lib/python3.12/lib-dynload/*.so; do
    missing=$(ldd "$file" 2>/dev/null | sed -n 's/^[[:space:]]*\([^ ]*\) => not found.*/\1/p' | sort -u | tr '\n' ' ')
    if [ -n "$missing" ]; then
        rm "$file"
        echo "::dropped $(basename "$file" | cut -d. -f1) needs $missing"
    fi
done

bin/python3.12 -I -B -c '
import bz2, ctypes, curses, ensurepip, hashlib, lzma, readline, sqlite3, ssl, sys, uuid, venv, zlib
assert sys.version_info[:2] == (3, 12), sys.version
assert sys.prefix == "/opt/python3.12", sys.prefix
print("::python", sys.version.split()[0])
'
# Compiled once for all users of the image; judged by content, for time stamps are all alike.
PYTHONHASHSEED=0 bin/python3.12 -I -B -m compileall -q -j 1 --invalidation-mode unchecked-hash \
    lib/python3.12

#!/bin/sh
# Agrees where it remembers the first head, the second, or nothing yet; then remembers the second.
remembered=$(cat anchor.head 2>/dev/null)
case "$remembered" in
  "" | "$1" | "$2") printf %s "$2" > anchor.head ;;
  *) echo "another head is remembered" >&2; exit 1 ;;
esac

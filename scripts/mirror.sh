# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
# Sourced by the scripts that fetch packages.

# mirror: the Debian mirror that this machine already uses, as the one-line and the deb822 formats name it; empty: none
mirror() (
  shopt -s nullglob # a machine may have files of one format only, and awk fails on a name that is none
  list=(/etc/apt/sources.list.d/*.list) deb822=(/etc/apt/sources.list.d/*.sources)
  [ ! -f /etc/apt/sources.list ] || list=(/etc/apt/sources.list "${list[@]}")
  { [ ${#list[@]} = 0 ] || awk '/^deb / { for (i = 2; i <= NF; i++) if ($i ~ /^https?:/) { print $i, $(i + 1); break } }' "${list[@]}"
    [ ${#deb822[@]} = 0 ] || awk '/^URIs:/ { u = $2 } /^Suites:/ { print u, $2 }' "${deb822[@]}"; } |
    awk -v suite="$(. /etc/os-release && echo "${VERSION_CODENAME:-}")" '$2 == suite && !found { print $1; found = 1 }'
)

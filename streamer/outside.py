"""Text and addresses of other programs, drivers and people."""

import ipaddress


def printable(text: str) -> str:
    """Return text of the same length that cannot steer a terminal or break a line.

    Text may come from a daemon on another machine: control characters, line breaks among them, become spaces.
    """
    return "".join(char if char.isprintable() else " " for char in text)


def one_line(text: object) -> str:
    """Return text, or what an error says, as one line with single spaces and none at its ends."""
    return " ".join(printable(str(text)).split())


def escaped(text: str, keep: str = "") -> str:
    """Return text whose control characters are written out, such as `\\x1b`, except those to `keep`."""
    return "".join(
        char if char.isprintable() or char in keep else char.encode("unicode_escape").decode("ascii") for char in text
    )


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach `host`; a name other than `localhost` counts as reachable."""
    name = host.lower().strip("[]")
    if name == "localhost":
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def is_wildcard(host: str) -> bool:
    """Return whether `host` means all addresses of the machine."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_unspecified
    except ValueError:
        return False


def own_host(host: str) -> str:
    """Return where programs on this machine reach one that listens on `host`."""
    if is_wildcard(host):
        return "::1" if ":" in host else "127.0.0.1"
    return host.strip("[]")


def host_port(host: str, port: int) -> str:
    """Return host and port as addresses have them, such as `[::1]:8765`."""
    name = host.strip("[]")
    return f"[{name}]:{port}" if ":" in name else f"{name}:{port}"


def parse_address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Read an IP address as headers have it, with a port or without; None for other text.

    An IPv4 address within IPv6, as a socket for both shows it, is the IPv4 address; a zone is left out.
    """
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address


def network_of(address: str) -> str:
    """Return what limits count an address as: itself, of IPv6 its network of 64 bits.

    One subscriber has at least that many addresses of IPv6 (RFC 6177).
    """
    found = parse_address(address)
    if isinstance(found, ipaddress.IPv6Address):
        return str(ipaddress.ip_network((int(found) >> 64 << 64, 64)))
    return address if found is None else str(found)

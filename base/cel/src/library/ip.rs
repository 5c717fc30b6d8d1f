//! `ip('10.0.0.1')` and `cidr('10.0.0.0/8').containsIP('10.0.0.1')`: addresses and ranges of them.

use std::net::IpAddr;

use cel::common::types::{CelBool, CelInt, CelString};
use cel::common::value::{StaticVal, Val};
use cel::{DeclarationError, Env, ExecutionError, add_member_overload, add_overload};
use ipnet::IpNet;

use super::{opaque, wrong};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ip(IpAddr);

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cidr(IpNet);

opaque!(Ip, "net.IP");
opaque!(Cidr, "net.CIDR");

pub fn declare(env: &mut Env) -> Result<(), DeclarationError> {
    env.add_type(<Ip as Val>::cel_type().to_owned())?;
    env.add_type(<Cidr as Val>::cel_type().to_owned())?;
    add_overload!(env, fn ip: (CelString) -> Result<Ip>)?;
    add_overload!(env, fn is_ip: (CelString) -> CelBool, name = "isIP")?;
    add_overload!(env, fn is_canonical: (CelString) -> Result<CelBool>, name = "ip.isCanonical")?;
    add_overload!(env, fn ip_text: (Ip) -> CelString, name = "string")?;
    add_member_overload!(env, fn family: (Ip) -> CelInt)?;
    add_member_overload!(env, fn is_unspecified: (Ip) -> CelBool)?;
    add_member_overload!(env, fn is_loopback: (Ip) -> CelBool)?;
    add_member_overload!(env, fn is_link_local_multicast: (Ip) -> CelBool)?;
    add_member_overload!(env, fn is_link_local_unicast: (Ip) -> CelBool)?;
    add_member_overload!(env, fn is_global_unicast: (Ip) -> CelBool)?;
    add_overload!(env, fn cidr: (CelString) -> Result<Cidr>)?;
    add_overload!(env, fn is_cidr: (CelString) -> CelBool, name = "isCIDR")?;
    add_overload!(env, fn cidr_text: (Cidr) -> CelString, name = "string")?;
    add_member_overload!(env, fn contains_ip: (Cidr, Ip) -> CelBool, name = "containsIP")?;
    add_member_overload!(env, fn contains_ip_text: (Cidr, CelString) -> Result<CelBool>, name = "containsIP")?;
    add_member_overload!(env, fn contains_cidr: (Cidr, Cidr) -> CelBool, name = "containsCIDR")?;
    add_member_overload!(env, fn contains_cidr_text: (Cidr, CelString) -> Result<CelBool>, name = "containsCIDR")?;
    add_member_overload!(env, fn address: (Cidr) -> Ip, name = "ip")?;
    add_member_overload!(env, fn masked: (Cidr) -> Cidr)?;
    add_member_overload!(env, fn prefix_length: (Cidr) -> CelInt)
}

/// IPv4 in IPv6's clothes and zones are not accepted, as in upstream's parser.
fn parse_ip(text: &str) -> Result<IpAddr, ExecutionError> {
    let refuse = |why: &str| {
        wrong("ip", format!("IP Address {text:?} parse error during conversion from string: {why}"))
    };
    match text.parse::<IpAddr>() {
        Ok(IpAddr::V6(address)) if address.to_ipv4_mapped().is_some() => {
            Err(refuse("IPv4-mapped IPv6 address is not allowed"))
        }
        Ok(address) => Ok(address),
        Err(_) if text.contains('%') => Err(refuse("IP address with zone value is not allowed")),
        Err(_) => Err(refuse(&format!("ParseAddr({text:?}): unable to parse IP"))),
    }
}

fn parse_cidr(text: &str) -> Result<IpNet, ExecutionError> {
    let refuse = |why: String| {
        wrong("cidr", format!("network address parse error during conversion from string: {why}"))
    };
    let net = text.parse::<IpNet>().map_err(|_| refuse(format!("netip.ParsePrefix({text:?}): invalid")))?;
    match net.addr() {
        IpAddr::V6(address) if address.to_ipv4_mapped().is_some() => {
            Err(refuse("IPv4-mapped IPv6 address is not allowed".into()))
        }
        _ => Ok(net),
    }
}

fn ip(text: &CelString<'_>) -> Result<Ip, ExecutionError> {
    parse_ip(text.inner()).map(Ip)
}

fn is_ip(text: &CelString<'_>) -> CelBool {
    parse_ip(text.inner()).is_ok().into()
}

fn is_canonical(text: &CelString<'_>) -> Result<CelBool, ExecutionError> {
    Ok((parse_ip(text.inner())?.to_string() == text.inner()).into())
}

fn ip_text(this: &Ip) -> CelString<'static> {
    CelString::from(this.0.to_string())
}

fn family(this: &Ip) -> CelInt {
    CelInt::from(if this.0.is_ipv4() { 4 } else { 6 })
}

fn is_unspecified(this: &Ip) -> CelBool {
    this.0.is_unspecified().into()
}

fn is_loopback(this: &Ip) -> CelBool {
    this.0.is_loopback().into()
}

fn is_link_local_multicast(this: &Ip) -> CelBool {
    match this.0 {
        IpAddr::V4(address) => address.octets()[..3] == [224, 0, 0],
        IpAddr::V6(address) => address.segments()[0] & 0xff0f == 0xff02,
    }
    .into()
}

fn link_local(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => address.is_link_local(),
        IpAddr::V6(address) => address.segments()[0] & 0xffc0 == 0xfe80,
    }
}

fn is_link_local_unicast(this: &Ip) -> CelBool {
    link_local(this.0).into()
}

fn is_global_unicast(this: &Ip) -> CelBool {
    let broadcast = matches!(this.0, IpAddr::V4(address) if address.is_broadcast());
    let special = this.0.is_unspecified() || this.0.is_loopback() || this.0.is_multicast() || broadcast;
    (!special && !link_local(this.0)).into()
}

fn cidr(text: &CelString<'_>) -> Result<Cidr, ExecutionError> {
    parse_cidr(text.inner()).map(Cidr)
}

fn is_cidr(text: &CelString<'_>) -> CelBool {
    parse_cidr(text.inner()).is_ok().into()
}

fn cidr_text(this: &Cidr) -> CelString<'static> {
    CelString::from(this.0.to_string())
}

fn contains_ip(this: &Cidr, other: &Ip) -> CelBool {
    this.0.contains(&other.0).into()
}

fn contains_ip_text(this: &Cidr, other: &CelString<'_>) -> Result<CelBool, ExecutionError> {
    Ok(this.0.contains(&parse_ip(other.inner())?).into())
}

fn contains_cidr(this: &Cidr, other: &Cidr) -> CelBool {
    this.0.contains(&other.0).into()
}

fn contains_cidr_text(this: &Cidr, other: &CelString<'_>) -> Result<CelBool, ExecutionError> {
    Ok(this.0.contains(&parse_cidr(other.inner())?).into())
}

fn address(this: &Cidr) -> Ip {
    Ip(this.0.addr())
}

fn masked(this: &Cidr) -> Cidr {
    Cidr(this.0.trunc())
}

fn prefix_length(this: &Cidr) -> CelInt {
    CelInt::from(i64::from(this.0.prefix_len()))
}

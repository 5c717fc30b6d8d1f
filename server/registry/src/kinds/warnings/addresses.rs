//! Addresses and networks that are read, but not written as they should be.

use std::net::IpAddr;

use super::Warnings;
use crate::kinds::rules::field::Field;
use crate::kinds::rules::format;

/// Nothing is said of what is no address at all: another rule has judged that.
pub fn of_address(field: Field<'_>, said: &mut Warnings) {
    let text = field.text();
    let Some(address) = format::sloppy_ip(text) else { return };
    let plain = without_mapping(address);
    match text.parse::<IpAddr>() {
        Ok(_) if plain == address => {
            if address.is_ipv6() && address.to_string() != text {
                let what = format!(
                    "IPv6 address {text:?} should be in RFC 5952 canonical format ({:?})",
                    address.to_string()
                );
                said.at(field.path, &what);
            }
        }
        _ => {
            let what = format!("non-standard IP address {text:?} is invalid: use {:?}", plain.to_string());
            said.at(field.path, &what);
        }
    }
}

pub fn of_network(field: Field<'_>, said: &mut Warnings) {
    let text = field.text();
    let Some((address, length)) = format::network(text) else { return };
    let first = format::masked(address, length);
    let (plain, plain_length) = match (without_mapping(first), length.checked_sub(96)) {
        (plain, Some(short)) if plain != first => (plain, short),
        (plain, _) => (plain, length),
    };
    let network = format!("{plain}/{plain_length}");
    let mut is_fine = true;
    if first != address {
        is_fine = false;
        let single = format!("{}/{}", without_mapping(address), if address.is_ipv4() { 32 } else { 128 });
        let what = format!(
            "CIDR value {text:?} is ambiguous in this context (should be {network:?} or {single:?}?)"
        );
        said.at(field.path, &what);
    }
    let (given, digits) = text.split_once('/').unwrap_or((text, ""));
    let is_strict = given.parse::<IpAddr>().is_ok() && (digits == "0" || !digits.starts_with('0'));
    if !is_strict || without_mapping(address) != address {
        is_fine = false;
        said.at(field.path, &format!("non-standard CIDR value {text:?} is invalid: use {network:?}"));
    }
    let canonical = format!("{address}/{length}");
    if is_fine && address.is_ipv6() && canonical != text {
        let what = format!("IPv6 CIDR value {text:?} should be in RFC 5952 canonical format ({canonical:?})");
        said.at(field.path, &what);
    }
}

/// An IPv4 address that is written as one of IPv6 is one of IPv4.
fn without_mapping(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V6(long) => long.to_ipv4_mapped().map_or(address, IpAddr::V4),
        IpAddr::V4(_) => address,
    }
}

//! Address ranges, and cutting equal parts from them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

/// A range such as 10.244.0.0/16.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Cidr {
    base: u128,
    prefix: u8,
    is_v6: bool,
}

#[derive(Debug, PartialEq, Eq)]
pub struct MalformedCidr;

impl Cidr {
    pub fn is_v6(&self) -> bool {
        self.is_v6
    }

    fn bits(&self) -> u8 {
        if self.is_v6 { 128 } else { 32 }
    }

    /// How many parts of this prefix length there are; 0 if the range is smaller than a part.
    pub fn parts(&self, prefix: u8) -> u128 {
        match prefix.checked_sub(self.prefix) {
            Some(extra) if prefix <= self.bits() && extra < 64 => 1 << extra,
            _ => 0,
        }
    }

    pub fn part(&self, prefix: u8, index: u128) -> Cidr {
        let size = u32::from(self.bits() - prefix);
        Cidr { base: self.base | (index << size), prefix, is_v6: self.is_v6 }
    }

    pub fn contains(&self, address: IpAddr) -> bool {
        self.overlaps(&Cidr::from(address))
    }

    pub fn overlaps(&self, other: &Cidr) -> bool {
        let shared = self.prefix.min(other.prefix);
        let mask = mask(shared, self.bits());
        self.is_v6 == other.is_v6 && self.base & mask == other.base & mask
    }
}

fn mask(prefix: u8, bits: u8) -> u128 {
    let host = u32::from(bits - prefix);
    if host >= 128 { 0 } else { (u128::MAX >> (128 - u32::from(bits))) & (u128::MAX << host) }
}

impl From<IpAddr> for Cidr {
    fn from(address: IpAddr) -> Cidr {
        match address {
            IpAddr::V4(v4) => Cidr { base: u128::from(v4.to_bits()), prefix: 32, is_v6: false },
            IpAddr::V6(v6) => Cidr { base: v6.to_bits(), prefix: 128, is_v6: true },
        }
    }
}

impl FromStr for Cidr {
    type Err = MalformedCidr;

    fn from_str(text: &str) -> Result<Self, MalformedCidr> {
        let (address, prefix) = text.split_once('/').ok_or(MalformedCidr)?;
        let address: IpAddr = address.parse().map_err(|_| MalformedCidr)?;
        let prefix: u8 = prefix.parse().map_err(|_| MalformedCidr)?;
        let single = Cidr::from(address);
        if prefix > single.bits() {
            return Err(MalformedCidr);
        }
        Ok(Cidr { base: single.base & mask(prefix, single.bits()), prefix, ..single })
    }
}

impl std::fmt::Display for Cidr {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.is_v6 {
            true => write!(f, "{}/{}", Ipv6Addr::from_bits(self.base), self.prefix),
            false => write!(f, "{}/{}", Ipv4Addr::from_bits(self.base as u32), self.prefix),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cidr(text: &str) -> Cidr {
        text.parse().unwrap_or_else(|_| panic!("{text} is well formed"))
    }

    #[test]
    fn ranges_are_read_cut_and_printed() {
        let check = |whole: &str, prefix: u8, index: u128, expected: &str| {
            assert_eq!(cidr(whole).part(prefix, index).to_string(), expected);
        };
        check("10.244.0.0/16", 24, 0, "10.244.0.0/24");
        check("10.244.9.9/16", 24, 255, "10.244.255.0/24");
        check("fd00::/48", 64, 3, "fd00:0:0:3::/64");
        assert_eq!((cidr("10.244.0.0/16").parts(24), cidr("10.0.0.0/24").parts(16)), (256, 0));
        for bad in ["", "10.0.0.0", "10.0.0.0/33", "x/8", "10.0.0.0/-1", "fd00::/129"] {
            assert_eq!(bad.parse::<Cidr>(), Err(MalformedCidr), "{bad}");
        }
    }

    #[test]
    fn ranges_overlap_when_one_holds_the_other() {
        let check =
            |a: &str, b: &str, expected: bool| assert_eq!(cidr(a).overlaps(&cidr(b)), expected, "{a} {b}");
        check("10.0.0.0/8", "10.1.0.0/16", true);
        check("10.1.0.0/16", "10.0.0.0/8", true);
        check("10.1.0.0/16", "10.2.0.0/16", false);
        check("0.0.0.0/0", "10.2.0.0/16", true);
        check("::/0", "10.2.0.0/16", false);
    }
}

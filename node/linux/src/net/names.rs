//! Names of kernel objects, derived from the name of whoever owns them: so two owners can live on one
//! machine, and each finds and removes only what is its own.

/// The longest interface name the kernel takes (IFNAMSIZ less the final zero).
const INTERFACE_LENGTH: usize = 15;

/// An interface of `owner`: `ferry` and `br0` give `ferry-br0`. A name too long or with characters an
/// interface cannot have is shortened to its head and a digest of the whole.
pub fn interface(owner: &str, suffix: &str) -> String {
    let room = INTERFACE_LENGTH - suffix.len() - 1;
    let plain = owner.chars().all(|c| c.is_ascii_alphanumeric() || c == '-');
    if plain && !owner.is_empty() && owner.len() <= room {
        return format!("{owner}-{suffix}");
    }
    let digest = &hex(owner)[..6];
    let head: String = owner.chars().filter(char::is_ascii_alphanumeric).take(room - 6).collect();
    format!("{head}{digest}-{suffix}")
}

/// An nftables table of `owner`: `dev` and `services` give `ferry-dev-services`.
pub fn table(owner: &str, suffix: &str) -> String {
    let plain = owner.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'));
    if plain && owner.len() <= 128 {
        format!("ferry-{owner}-{suffix}")
    } else {
        format!("ferry-{}-{suffix}", hex(owner))
    }
}

/// Sixteen hexadecimal digits that stay the same from run to run and from release to release: FNV-1a,
/// since names must be found again by whoever comes later. Not for secrets.
pub fn hex(text: &str) -> String {
    let mut hash: u64 = 0xcbf2_9ce4_8422_2325;
    for byte in text.bytes() {
        hash = (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
    }
    format!("{hash:016x}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interface_names_fit_and_differ() {
        assert_eq!(interface("ferry", "br0"), "ferry-br0");
        let long = interface("a-rather-long-cluster-name", "br0");
        assert_eq!(long.len(), INTERFACE_LENGTH);
        assert_ne!(long, interface("a-rather-long-cluster-name-2", "br0"));
        assert!(interface("with space/and slash", "vx0").len() <= INTERFACE_LENGTH);
        assert!(!interface("with space/and slash", "vx0").contains(['/', ' ']));
    }

    #[test]
    fn digests_never_change() {
        assert_eq!(hex(""), "cbf29ce484222325");
        assert_eq!(hex("a"), "af63dc4c8601ec8c");
    }
}

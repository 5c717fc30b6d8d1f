//! A firewall of the host that drops what is forwarded takes pods off the network. It is not ours to
//! change; it is ours to see and to say.

/// The chains that drop forwarded packets by policy, out of `nft list chains`; our own have no policy.
pub fn dropping_chains(listing: &str) -> Vec<String> {
    let mut dropping = Vec::new();
    let (mut table, mut chain) = ("", "");
    for line in listing.lines().map(str::trim) {
        if let Some(rest) = line.strip_prefix("table ") {
            table = rest.trim_end_matches(" {");
        } else if let Some(rest) = line.strip_prefix("chain ") {
            chain = rest.trim_end_matches(" {");
        } else if line.contains("hook forward") && line.contains("policy drop") {
            dropping.push(format!("{table} {chain}"));
        }
    }
    dropping
}

/// For people.
pub fn explain(chains: &[String]) -> String {
    format!(
        "the host's firewall drops what is forwarded (policy of {}): pods may not reach each other, services or \
         the outside; let it accept what comes from and goes to the pods' addresses",
        chains.join(", ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_forward_policy_of_drop_is_seen() {
        let listing = "table ip filter {\n\tchain INPUT {\n\t\ttype filter hook input priority filter; policy drop;\n\t}\n\
                       \tchain FORWARD {\n\t\ttype filter hook forward priority filter; policy drop;\n\t}\n}\n\
                       table ip ours {\n\tchain filter-forward {\n\t\ttype filter hook forward priority filter; policy accept;\n\t}\n}\n";
        assert_eq!(dropping_chains(listing), ["ip filter FORWARD"]);
        assert!(dropping_chains("").is_empty());
    }
}

//! A short name for a pod template, for labels and object names.

use k8s_openapi::api::core::v1::PodTemplateSpec;

/// Where a Deployment, StatefulSet or DaemonSet notes it on its pods.
pub const POD_TEMPLATE_HASH: &str = "pod-template-hash";
pub const CONTROLLER_REVISION_HASH: &str = "controller-revision-hash";

/// Equal for equal templates. `collisions` makes another name when two different templates
/// happen to share one.
///
/// Upstream hashes Go's own rendering of the struct, which nobody else can repeat. Nothing
/// depends on that: templates are compared by content, the hash is only a name.
pub fn template_hash(template: &PodTemplateSpec, collisions: Option<i32>) -> String {
    // Fields are in one order and maps are sorted, so equal templates give equal JSON.
    let json = serde_json::to_vec(template).expect("a template is plain data");
    hash(&json, collisions)
}

pub fn hash(bytes: &[u8], collisions: Option<i32>) -> String {
    let salt = collisions.filter(|count| *count != 0).map(i32::to_le_bytes);
    safe_encode(fnv1a(bytes.iter().chain(salt.iter().flatten())))
}

fn fnv1a<'a>(bytes: impl Iterator<Item = &'a u8>) -> u32 {
    bytes.fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193))
}

/// Decimal digits in an alphabet without vowels, so that no name spells a word.
fn safe_encode(number: u32) -> String {
    const ALPHABET: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
    number
        .to_string()
        .bytes()
        .map(|digit| char::from(ALPHABET[usize::from(digit) % ALPHABET.len()]))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_templates_share_a_name_and_a_collision_gives_another() {
        let template = PodTemplateSpec::default();
        let name = template_hash(&template, None);
        assert_eq!(name, template_hash(&template.clone(), Some(0)));
        assert_ne!(name, template_hash(&template, Some(1)));
        assert!(
            name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit()) && name.len() <= 10
        );
    }
}

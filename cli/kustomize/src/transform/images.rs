//! New names, tags and digests for images.

use regex::Regex;

use crate::error::{Error, Result};
use crate::field_spec::{Create, FieldSpec, not_scalar, set_text};
use crate::kustomization::Image;
use crate::resource::scalar_text;
use crate::resources::Resources;

pub fn set_image(resources: &mut Resources, image: &Image, specs: &[FieldSpec]) -> Result<()> {
    // the name is a pattern, as in kustomize
    let pattern = format!("^{}(:[a-zA-Z0-9_.{{}}-]*)?(@sha256:[a-zA-Z0-9_.{{}}-]*)?$", image.name);
    let pattern = Regex::new(&pattern)
        .map_err(|error| Error::new(format!("image name {:?} is no pattern: {error}", image.name)))?;
    for resource in resources.0.iter_mut().filter(|resource| resource.kind() != "CustomResourceDefinition") {
        for spec in specs {
            spec.visit(resource, Create::Nothing, &mut |value| {
                if value.is_object() || value.is_array() {
                    return Err(not_scalar(value));
                }
                let text = scalar_text(value);
                if pattern.is_match(&text) { set_text(value, changed(&text, image)) } else { Ok(()) }
            })?;
        }
    }
    Ok(())
}

fn changed(text: &str, image: &Image) -> String {
    let (mut name, mut tag, mut digest) = split(text);
    if !image.new_name.is_empty() {
        name = &image.new_name;
    }
    let suffixed = format!("{tag}{}", image.tag_suffix);
    match (image.new_tag.as_str(), image.digest.as_str()) {
        ("", "") if image.tag_suffix.is_empty() => {}
        ("", "") => (tag, digest) = (&suffixed, ""),
        (new_tag, new_digest) => (tag, digest) = (new_tag, new_digest),
    }
    let mut changed = name.to_owned();
    if !tag.is_empty() {
        changed.push_str(&format!(":{tag}"));
    }
    if !digest.is_empty() {
        changed.push_str(&format!("@{digest}"));
    }
    changed
}

/// Name, tag and digest. A colon before the first slash belongs to a registry's port.
fn split(text: &str) -> (&str, &str, &str) {
    let after_host = text.find('/').filter(|at| *at > 0).unwrap_or(0);
    let (named, digest) = match text[after_host..].find('@') {
        Some(at) => (&text[..after_host + at], &text[after_host + at + 1..]),
        None => (text, ""),
    };
    match named[after_host..].find(':') {
        Some(at) => (&named[..after_host + at], &named[after_host + at + 1..], digest),
        None => (named, "", digest),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_are_split_at_their_tag_and_digest() {
        let check = |text: &str, expected: (&str, &str, &str)| assert_eq!(split(text), expected, "{text}");
        check("nginx", ("nginx", "", ""));
        check("nginx:1.2", ("nginx", "1.2", ""));
        check("host:5000/a/b", ("host:5000/a/b", "", ""));
        check("host:5000/a/b:t@sha256:1", ("host:5000/a/b", "t", "sha256:1"));
        check("a@sha256:1", ("a", "", "sha256:1"));
    }
}

//! Pages seen through the API server's proxy: a link to `/x` in a pod's page must lead to the same pod, so it becomes
//! `/api/v1/namespaces/…/proxy/x`, in the page and in redirects. Links to other hosts and relative ones stay as
//! they are.
//!
//! Written by hand: the rewriters there are bring a CSS engine along, and all that is needed is where in a tag an
//! attribute's value begins and ends.

use bytes::Bytes;

/// A tag that does not end within so many bytes is passed on as it is.
const LONGEST_TAG: usize = 64 * 1024;

/// Attributes that hold links, by tag.
const LINKS: &[(&str, &[&str])] = &[
    ("a", &["href"]),
    ("applet", &["codebase"]),
    ("area", &["href"]),
    ("audio", &["src"]),
    ("base", &["href"]),
    ("blockquote", &["cite"]),
    ("body", &["background"]),
    ("button", &["formaction"]),
    ("command", &["icon"]),
    ("del", &["cite"]),
    ("embed", &["src"]),
    ("form", &["action"]),
    ("frame", &["longdesc", "src"]),
    ("head", &["profile"]),
    ("html", &["manifest"]),
    ("iframe", &["longdesc", "src"]),
    ("img", &["longdesc", "src", "usemap"]),
    ("input", &["src", "usemap", "formaction"]),
    ("ins", &["cite"]),
    ("link", &["href"]),
    ("object", &["classid", "codebase", "data", "usemap"]),
    ("q", &["cite"]),
    ("script", &["src"]),
    ("source", &["src"]),
    ("video", &["poster", "src"]),
];

/// The link as it leads through the proxy at `prefix`. `host` is whom the page was asked of.
pub fn through(prefix: &str, host: &str, link: &str) -> Option<String> {
    let path = match link.split_once("://") {
        Some((_, rest)) if !link.starts_with('/') => {
            let (named, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
            (named == host).then_some(path)?
        }
        _ if link.starts_with("//") => return None,
        _ => link,
    };
    let already = path.strip_prefix(prefix).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
    (path.starts_with('/') && !already).then(|| format!("{prefix}{path}"))
}

/// Rewrites a page as it passes.
pub struct Page {
    prefix: String,
    host: String,
    /// A tag whose end has not come yet, and how far it was looked for.
    pending: Vec<u8>,
    scan: Scan,
    /// Inside of this element nothing is markup.
    raw: Option<&'static str>,
}

impl Page {
    pub fn new(prefix: String, host: String) -> Page {
        Page { prefix, host, pending: Vec::new(), scan: Scan::default(), raw: None }
    }

    /// What can be passed on now that `chunk` has come. What is pending was looked through and is not again: whoever
    /// answers chooses how small the chunks are.
    pub fn feed(&mut self, chunk: &[u8]) -> Bytes {
        let mut input = std::mem::take(&mut self.pending);
        input.extend_from_slice(chunk);
        let mut output = Vec::with_capacity(chunk.len() + 128);
        let mut scan = std::mem::take(&mut self.scan);
        let mut passed = 0;
        while let Some(start) = input[passed..].iter().position(|byte| *byte == b'<') {
            output.extend_from_slice(&input[passed..passed + start]);
            passed += start;
            let Some(length) = scan.tag_length(&input[passed..]) else { break };
            self.tag(&input[passed..passed + length], &mut output);
            passed += length;
            scan = Scan::default();
        }
        if input[passed..].starts_with(b"<") && input.len() - passed <= LONGEST_TAG {
            input.drain(..passed);
            (self.pending, self.scan) = (input, scan);
        } else {
            output.extend_from_slice(&input[passed..]);
        }
        output.into()
    }

    /// What is left when the page has ended.
    pub fn finish(&mut self) -> Bytes {
        std::mem::take(&mut self.pending).into()
    }

    fn tag(&mut self, tag: &[u8], output: &mut Vec<u8>) {
        let name = name(&tag[1..]);
        if let Some(raw) = self.raw {
            if tag.get(1) == Some(&b'/') && self::name(&tag[2..]).eq_ignore_ascii_case(raw.as_bytes()) {
                self.raw = None;
            }
            return output.extend_from_slice(tag);
        }
        self.raw = ["script", "style", "textarea"]
            .into_iter()
            .find(|raw| name.eq_ignore_ascii_case(raw.as_bytes()) && !tag.ends_with(b"/>"));
        let links = LINKS.iter().find(|(of, _)| name.eq_ignore_ascii_case(of.as_bytes()));
        let Some((_, links)) = links else { return output.extend_from_slice(tag) };
        let mut copied = 0;
        for (attribute, value) in attributes(tag, 1 + name.len()) {
            let known = links.iter().any(|link| tag[attribute.clone()].eq_ignore_ascii_case(link.as_bytes()));
            let link = std::str::from_utf8(&tag[value.clone()]).ok().filter(|_| known);
            if let Some(link) = link.and_then(|link| through(&self.prefix, &self.host, link.trim())) {
                output.extend_from_slice(&tag[copied..value.start]);
                output.extend_from_slice(link.as_bytes());
                copied = value.end;
            }
        }
        output.extend_from_slice(&tag[copied..]);
    }
}

fn name(after: &[u8]) -> &[u8] {
    let end = after.iter().position(|byte| !byte.is_ascii_alphanumeric()).unwrap_or(after.len());
    &after[..end]
}

/// How far a tag was looked through for its end.
#[derive(Default)]
struct Scan {
    at: usize,
    /// The quote that the value begins with that it is in.
    quote: Option<u8>,
    #[cfg(test)]
    steps: usize,
}

impl Scan {
    /// Up to and with the `>` that ends the tag; quoted ones do not. `None` while it has not come.
    fn tag_length(&mut self, tag: &[u8]) -> Option<usize> {
        if tag.get(1).is_some_and(|byte| !byte.is_ascii_alphabetic() && *byte != b'/') {
            return Some(1);
        }
        while let Some(byte) = tag.get(self.at) {
            #[cfg(test)]
            {
                self.steps += 1;
            }
            match (self.quote, byte) {
                (None, b'>') => return Some(self.at + 1),
                // A quote begins a value only behind the equals sign.
                (None, b'"' | b'\'') if is_value(&tag[..self.at]) => self.quote = Some(*byte),
                (Some(open), byte) if open == *byte => self.quote = None,
                _ => {}
            }
            self.at += 1;
        }
        None
    }
}

fn is_value(before: &[u8]) -> bool {
    before.iter().rev().find(|byte| !byte.is_ascii_whitespace()) == Some(&b'=')
}

type Span = std::ops::Range<usize>;

/// Where the names and values of a whole tag's attributes are.
fn attributes(tag: &[u8], mut at: usize) -> Vec<(Span, Span)> {
    let mut found = Vec::new();
    let skip = |from: usize, wanted: &dyn Fn(u8) -> bool| {
        tag[from..].iter().position(|byte| !wanted(*byte)).map_or(tag.len(), |length| from + length)
    };
    while at < tag.len() {
        let start = skip(at, &|byte| byte.is_ascii_whitespace() || byte == b'/' || byte == b'>');
        let end = skip(start, &|byte| !byte.is_ascii_whitespace() && !b"=/>".contains(&byte));
        let equals = skip(end, &|byte| byte.is_ascii_whitespace());
        if tag.get(equals) != Some(&b'=') {
            at = end.max(start + 1);
            continue;
        }
        let value = skip(equals + 1, &|byte| byte.is_ascii_whitespace());
        let (from, to) = match tag.get(value) {
            Some(&quote @ (b'"' | b'\'')) => (value + 1, skip(value + 1, &|byte| byte != quote)),
            _ => (value, skip(value, &|byte| !byte.is_ascii_whitespace() && byte != b'>')),
        };
        found.push((start..end, from..to));
        at = to + 1;
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    const PREFIX: &str = "/api/v1/namespaces/n/pods/p/proxy";

    fn rewritten(chunks: &[&str]) -> String {
        let mut page = Page::new(PREFIX.into(), "10.0.0.1:80".into());
        let mut output: Vec<u8> = chunks.iter().flat_map(|chunk| page.feed(chunk.as_bytes())).collect();
        output.extend_from_slice(&page.finish());
        String::from_utf8(output).expect("text")
    }

    #[test]
    fn links_to_the_same_host_lead_through_the_proxy() {
        for (link, expected) in [
            ("/x", Some("/api/v1/namespaces/n/pods/p/proxy/x")),
            ("/x?a=http://b/c", Some("/api/v1/namespaces/n/pods/p/proxy/x?a=http://b/c")),
            ("http://10.0.0.1:80/x", Some("/api/v1/namespaces/n/pods/p/proxy/x")),
            ("http://elsewhere/x", None),
            ("//elsewhere/x", None),
            ("x", None),
            ("#x", None),
            ("/api/v1/namespaces/n/pods/p/proxy/x", None),
        ] {
            assert_eq!(through(PREFIX, "10.0.0.1:80", link).as_deref(), expected, "{link}");
        }
    }

    #[test]
    fn only_links_of_a_page_are_changed() {
        let page = r#"a < b <a class=/x href="/x">/x</a> <IMG src=/y alt='/y > z'><p title="/x"><script src="/s">"<a href='/x'>"</script>"#;
        let expected = page
            .replace(r#"href="/x""#, &format!(r#"href="{PREFIX}/x""#))
            .replace("src=/y", &format!("src={PREFIX}/y"))
            .replace(r#"src="/s""#, &format!(r#"src="{PREFIX}/s""#));
        assert_eq!(rewritten(&[page]), expected);
    }

    #[test]
    fn a_page_in_pieces_is_the_same_page() {
        let page = r#"<a href="/x">test</a><!-- <b> --><img src='/y'/> < <unfinished"#;
        let whole = rewritten(&[page]);
        for cut in 0..page.len() {
            assert_eq!(rewritten(&[&page[..cut], &page[cut..]]), whole, "cut at {cut}");
        }
    }

    #[test]
    fn a_page_that_comes_a_byte_at_a_time_is_looked_through_once() {
        let mut page = Page::new(PREFIX.into(), "10.0.0.1:80".into());
        let tag = format!("<a href='{}", ">".repeat(10_000));
        for byte in tag.bytes() {
            assert!(page.feed(&[byte]).is_empty());
        }
        assert_eq!(page.scan.steps, tag.len());
        assert_eq!(page.feed(b"'>"), format!("{tag}'>"));
    }

    #[test]
    fn text_without_links_is_unchanged() {
        for text in
            ["", "<", "<<<<", "<a", "<a href", "<a href=", "<a href=\"", "<a =/x>", "<a href='/x>", "</"]
        {
            assert_eq!(rewritten(&[text]), text, "{text}");
        }
    }
}

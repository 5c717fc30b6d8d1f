//! A PKCS #10 certificate request, read once: the registry, admission, the approver and the signer all decide on the
//! value that [`CertificateRequest::read`] returns. Two readers of one PEM text may find two different requests in it.

use std::net::IpAddr;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::cri_attributes::ParsedCriAttribute;
use x509_parser::extensions::{GeneralName, ParsedExtension};
use x509_parser::prelude::FromDer;

const BEGIN: &str = "-----BEGIN CERTIFICATE REQUEST-----";
const END: &str = "-----END CERTIFICATE REQUEST-----";

const COMMON_NAME: &str = "2.5.4.3";
const ORGANIZATION: &str = "2.5.4.10";

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CertificateRequest {
    /// The request itself, with its public key and signature, which [`CertificateRequest::read`] does not verify.
    pub der: Vec<u8>,
    pub common_name: String,
    pub organizations: Vec<String>,
    pub dns_names: Vec<String>,
    pub addresses: Vec<IpAddr>,
    pub emails: Vec<String>,
    pub uris: Vec<String>,
    /// Alternative names of other kinds.
    pub other_names: usize,
    /// More than one common name, or attributes beside common name and organization.
    pub unusual_subject: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Malformed(String);

impl std::fmt::Display for Malformed {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl std::error::Error for Malformed {}

impl CertificateRequest {
    pub fn read(pem: &[u8]) -> Result<CertificateRequest, Malformed> {
        CertificateRequest::from_der(der(pem)?)
    }

    fn from_der(der: Vec<u8>) -> Result<CertificateRequest, Malformed> {
        let (rest, parsed) =
            X509CertificationRequest::from_der(&der).map_err(|error| Malformed(error.to_string()))?;
        if !rest.is_empty() {
            return Err(Malformed("trailing data after the certificate request".into()));
        }
        let mut request = CertificateRequest::default();
        let mut common_names = 0;
        let info = &parsed.certification_request_info;
        for attribute in info.subject.iter_attributes() {
            let value =
                || attribute.as_str().map(str::to_string).map_err(|error| Malformed(error.to_string()));
            match attribute.attr_type().to_id_string().as_str() {
                COMMON_NAME => {
                    common_names += 1;
                    request.common_name = value()?;
                }
                ORGANIZATION => request.organizations.push(value()?),
                _ => request.unusual_subject = true,
            }
        }
        request.unusual_subject |= common_names > 1;
        for attribute in info.iter_attributes() {
            let ParsedCriAttribute::ExtensionRequest(requested) = attribute.parsed_attribute() else {
                continue;
            };
            for extension in &requested.extensions {
                match extension.parsed_extension() {
                    ParsedExtension::SubjectAlternativeName(names) => {
                        names.general_names.iter().for_each(|name| request.add_alternative(name));
                    }
                    ParsedExtension::ParseError { error } => {
                        return Err(Malformed(format!("extension {}: {error}", extension.oid)));
                    }
                    _ => {}
                }
            }
        }
        request.der = der;
        Ok(request)
    }

    fn add_alternative(&mut self, name: &GeneralName<'_>) {
        let address = |bytes: &[u8]| {
            let v4 = <[u8; 4]>::try_from(bytes).map(IpAddr::from);
            v4.or_else(|_| <[u8; 16]>::try_from(bytes).map(IpAddr::from)).ok()
        };
        match name {
            GeneralName::DNSName(name) => self.dns_names.push(name.to_string()),
            GeneralName::RFC822Name(name) => self.emails.push(name.to_string()),
            GeneralName::URI(name) => self.uris.push(name.to_string()),
            GeneralName::IPAddress(bytes) => match address(bytes) {
                Some(address) => self.addresses.push(address),
                None => self.other_names += 1,
            },
            _ => self.other_names += 1,
        }
    }

    pub fn has_alternative_names(&self) -> bool {
        let named = [&self.dns_names, &self.emails, &self.uris].iter().any(|names| !names.is_empty());
        named || !self.addresses.is_empty() || self.other_names > 0
    }
}

/// The bytes of the one block in `pem`. Lines before it are skipped, as upstream does. A line that begins a block must
/// hold nothing else, and nothing may follow the block: some readers would find another request there.
fn der(pem: &[u8]) -> Result<Vec<u8>, Malformed> {
    let malformed = |why: &str| Malformed(format!("PEM block: {why}"));
    let text = std::str::from_utf8(pem).map_err(|_| malformed("not text"))?;
    let mut lines = text.lines().map(str::trim_end).skip_while(|line| !line.starts_with("-----BEGIN"));
    if lines.next() != Some(BEGIN) {
        return Err(Malformed("PEM block type must be CERTIFICATE REQUEST".into()));
    }
    let mut base64 = String::with_capacity(text.len());
    loop {
        match lines.next() {
            None => return Err(malformed("it has no end")),
            Some(END) => break,
            Some(line) => base64.push_str(line),
        }
    }
    if lines.any(|line| !line.is_empty()) {
        return Err(malformed("data after its end"));
    }
    BASE64_STANDARD.decode(base64).map_err(|error| malformed(&error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// CN=system:node:n1, O=system:nodes, DNS:n1.example
    const NODE: &str = concat!(
        "MIIBEjCBugIBADAwMRUwEwYDVQQKDAxzeXN0ZW06bm9kZXMxFzAVBgNVBAMMDnN5c3RlbTpub2RlOm4xMFkwEwYHKoZIzj0CAQYI",
        "KoZIzj0DAQcDQgAEByUjEPIdmNaM+bADLdgATvirHDxK6ElYDU3R477SYKPPaq7g9PdNR4koxemJIx1srCrbq5kHYITArFRDcKGz",
        "ZqAoMCYGCSqGSIb3DQEJDjEZMBcwFQYDVR0RBA4wDIIKbjEuZXhhbXBsZTAKBggqhkjOPQQDAgNHADBEAiATS8uMkd06eoem6VE7",
        "vG9DGUrhu7V2omct+jLavTlMggIgDEIg/5fyaLWGytYZHrZ50gt32jbjt5A4bw472eEqhCA=",
    );

    fn pem(before: &str, body: &str, after: &str) -> String {
        format!("{before}{BEGIN}\n{body}\n{END}\n{after}")
    }

    #[test]
    fn a_request_is_read_from_the_one_block_of_its_pem() {
        let request = CertificateRequest::read(pem("", NODE, "").as_bytes()).expect("a request");
        assert_eq!(request.common_name, "system:node:n1");
        assert_eq!(request.organizations, ["system:nodes"]);
        assert_eq!(request.dns_names, ["n1.example"]);
        assert!(!request.unusual_subject && request.has_alternative_names());
        let folded = NODE.as_bytes().chunks(64).map(|line| String::from_utf8_lossy(line)).collect::<Vec<_>>();
        for same in [
            pem("Certificate Request:\n  Data:\n", NODE, ""),
            pem("", &folded.join("\n"), ""),
            pem("", &folded.join("\r\n"), "\n \n"),
        ] {
            assert_eq!(CertificateRequest::read(same.as_bytes()).as_ref(), Ok(&request), "{same}");
        }
    }

    #[test]
    fn text_that_two_readers_read_differently_is_refused() {
        let block = pem("", NODE, "");
        for bad in [
            String::new(),
            "x".into(),
            "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n".into(),
            pem("", "AAAA", ""),
            pem("", "!", ""),
            pem("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", NODE, ""),
            // A reader that looks for the label and a reader that looks for lines find different requests.
            format!("{BEGIN}{NODE}{END}\n{NODE}\n{END}\n"),
            format!("{BEGIN}{NODE}{END}\n"),
            format!(" {block}").replacen(BEGIN, &format!("{BEGIN}{NODE}{END}"), 1),
            pem("", &format!("Proc-Type: 4\n\n{NODE}"), ""),
            pem("", &format!("{NODE}{END}\n{BEGIN}\n{NODE}"), ""),
            pem("", NODE, &block),
            pem("", NODE, "x"),
            format!("{BEGIN}\n{NODE}\n"),
        ] {
            assert!(CertificateRequest::read(bad.as_bytes()).is_err(), "{bad}");
        }
        assert!(CertificateRequest::read(b"\xff").is_err());
    }

    #[test]
    fn bytes_after_the_request_are_refused() {
        let mut der = BASE64_STANDARD.decode(NODE).expect("base64");
        der.push(0);
        assert!(CertificateRequest::from_der(der).is_err());
    }
}

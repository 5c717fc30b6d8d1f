//! A CertificateSigningRequest: who asks for a certificate of which subject, and what became of it.

use std::net::IpAddr;

use base64::Engine as _;
use serde_json::Value;
use x509_parser::prelude::{FromDer, GeneralName, ParsedExtension, X509CertificationRequest};

use super::class::joined;
use super::time;
use crate::error::{Error, Result};
use crate::fields::Fields;
use crate::printers::duration;

/// Attributes of a subject in the order of the page, by their object identifiers.
const SUBJECT: [(&str, &str); 9] = [
    ("Common Name", "2.5.4.3"),
    ("Serial Number", "2.5.4.5"),
    ("Organization", "2.5.4.10"),
    ("Organizational Unit", "2.5.4.11"),
    ("Country", "2.5.4.6"),
    ("Locality", "2.5.4.7"),
    ("Province", "2.5.4.8"),
    ("StreetAddress", "2.5.4.9"),
    ("PostalCode", "2.5.4.17"),
];

pub fn page(request: &Value) -> Result<String> {
    let refuse = |why: &str| Error::message(format!("Error parsing CSR: {why}"));
    let pem = base64::prelude::BASE64_STANDARD
        .decode(request.text("spec.request"))
        .map_err(|error| refuse(&error.to_string()))?;
    let (_, block) = x509_parser::pem::parse_x509_pem(&pem)
        .map_err(|_| refuse("PEM block type must be CERTIFICATE REQUEST"))?;
    if block.label != "CERTIFICATE REQUEST" {
        return Err(refuse("PEM block type must be CERTIFICATE REQUEST"));
    }
    let (_, parsed) =
        X509CertificationRequest::from_der(&block.contents).map_err(|error| refuse(&error.to_string()))?;
    let mut text = format!(
        "Name:\t{}\nLabels:\t{}\nAnnotations:\t{}\nCreationTimestamp:\t{}\nRequesting User:\t{}\n",
        request.name(),
        joined(request, "metadata.labels"),
        joined(request, "metadata.annotations"),
        time(request.text("metadata.creationTimestamp")),
        request.text("spec.username")
    );
    if !request.text("spec.signerName").is_empty() {
        text.push_str(&format!("Signer:\t{}\n", request.text("spec.signerName")));
    }
    if let Some(seconds) = request.int("spec.expirationSeconds") {
        text.push_str(&format!("Requested Duration:\t{}\n", duration::human(seconds)));
    }
    text.push_str(&format!("Status:\t{}\nSubject:\n", status(request)));
    let subject = &parsed.certification_request_info.subject;
    for (title, identifier) in SUBJECT {
        let found =
            subject.iter_attributes().filter(|attribute| attribute.attr_type().to_id_string() == identifier);
        let values: Vec<String> = found.filter_map(|value| value.as_str().ok().map(str::to_owned)).collect();
        // These two have one value, which may be empty; upstream takes the last.
        if matches!(title, "Common Name" | "Serial Number") {
            text.push_str(&format!("\t{title}:\t{}\n", values.last().map_or("", String::as_str)));
        } else {
            text.push_str(&list(title, &values));
        }
    }
    text.push_str(&alternative_names(&parsed));
    Ok(text)
}

fn alternative_names(parsed: &X509CertificationRequest<'_>) -> String {
    let (mut dns, mut mails, mut uris, mut addresses) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for extension in parsed.requested_extensions().into_iter().flatten() {
        let ParsedExtension::SubjectAlternativeName(names) = extension else { continue };
        for name in &names.general_names {
            match name {
                GeneralName::DNSName(name) => dns.push((*name).to_owned()),
                GeneralName::RFC822Name(name) => mails.push((*name).to_owned()),
                GeneralName::URI(name) => uris.push((*name).to_owned()),
                GeneralName::IPAddress(bytes) => addresses.extend(address(bytes).map(|ip| ip.to_string())),
                _ => {}
            }
        }
    }
    if dns.len() + mails.len() + uris.len() + addresses.len() == 0 {
        return String::new();
    }
    let lists = [("DNS Names", dns), ("Email Addresses", mails), ("URIs", uris), ("IP Addresses", addresses)];
    let lines: String = lists.iter().map(|(title, values)| list(title, values)).collect();
    format!("Subject Alternative Names:\n{lines}")
}

fn address(bytes: &[u8]) -> Option<IpAddr> {
    let four = <[u8; 4]>::try_from(bytes).map(IpAddr::from).ok();
    four.or_else(|| <[u8; 16]>::try_from(bytes).map(IpAddr::from).ok())
}

/// A title and its values below each other, if there are any.
fn list(title: &str, values: &[String]) -> String {
    if values.is_empty() { String::new() } else { format!("\t{title}:\t{}\n", values.join("\n\t\t")) }
}

fn status(request: &Value) -> String {
    let has =
        |kind: &str| request.list("status.conditions").iter().any(|condition| condition.text("type") == kind);
    let mut status = match (has("Denied"), has("Approved")) {
        (true, _) => "Denied",
        (_, true) => "Approved",
        _ => "Pending",
    }
    .to_owned();
    if has("Failed") {
        status.push_str(",Failed");
    }
    if !request.text("status.certificate").is_empty() {
        status.push_str(",Issued");
    }
    status
}

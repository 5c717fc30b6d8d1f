//! Who a certificate is asked for: the subject of a PKCS #10 request.

use base64::Engine;
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::prelude::FromDer;

#[derive(Debug, Default, PartialEq, Eq)]
pub struct Subject {
    pub common_name: String,
    pub organizations: Vec<String>,
}

/// Reads the PEM that stands in `spec.request`, in base64.
pub fn subject_of(request: &str) -> Result<Subject, String> {
    let pem = base64::prelude::BASE64_STANDARD.decode(request).map_err(|error| error.to_string())?;
    let (_, pem) = x509_parser::pem::parse_x509_pem(&pem).map_err(|error| error.to_string())?;
    let (_, request) =
        X509CertificationRequest::from_der(&pem.contents).map_err(|error| error.to_string())?;
    let subject = &request.certification_request_info.subject;
    let common_name = subject.iter_common_name().next().and_then(|name| name.as_str().ok()).unwrap_or("");
    let organizations = subject.iter_organization().filter_map(|name| name.as_str().ok());
    Ok(Subject {
        common_name: common_name.to_string(),
        organizations: organizations.map(str::to_string).collect(),
    })
}

//! Authenticated encryption with a shared secret: ChaCha20-Poly1305 under a key that HKDF derives from the secret. Pure,
//! except for the nonce.
//!
//! ```text
//! nonce 12 | ciphertext | tag 16
//! ```

use ring::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::hkdf::{HKDF_SHA256, Salt};
use ring::rand::{SecureRandom, SystemRandom};

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum Error {
    #[error("the secret cannot be used as a key")]
    Key,
    #[error("the system gives no random bytes")]
    Random,
    #[error("too many bytes to encrypt")]
    Seal,
    #[error("the encrypted bytes are truncated")]
    Short,
    #[error("the bytes were encrypted with another secret or for another purpose, or they were modified")]
    Foreign,
}

/// `purpose` is bound into what is sealed: nothing else that the secret seals can be taken for it.
pub fn seal(secret: &str, purpose: &[u8], mut plain: Vec<u8>) -> Result<Vec<u8>, Error> {
    let mut nonce = [0; NONCE_LEN];
    SystemRandom::new().fill(&mut nonce).map_err(|_| Error::Random)?;
    cipher(secret, purpose)?
        .seal_in_place_append_tag(Nonce::assume_unique_for_key(nonce), Aad::from(purpose), &mut plain)
        .map_err(|_| Error::Seal)?;
    Ok([nonce.as_slice(), &plain].concat())
}

pub fn open(secret: &str, purpose: &[u8], sealed: &[u8]) -> Result<Vec<u8>, Error> {
    let (nonce, text) = sealed.split_first_chunk::<NONCE_LEN>().ok_or(Error::Short)?;
    let mut text = text.to_vec();
    let opened = cipher(secret, purpose)?
        .open_in_place(Nonce::assume_unique_for_key(*nonce), Aad::from(purpose), &mut text)
        .map_err(|_| Error::Foreign)?
        .len();
    text.truncate(opened);
    Ok(text)
}

/// Space around the secret does not count: it comes from files and command lines.
fn cipher(secret: &str, purpose: &[u8]) -> Result<LessSafeKey, Error> {
    let secret = Salt::new(HKDF_SHA256, purpose).extract(secret.trim().as_bytes());
    let key: UnboundKey = secret.expand(&[purpose], &CHACHA20_POLY1305).map_err(|_| Error::Key)?.into();
    Ok(LessSafeKey::new(key))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_same_secret_and_purpose_open_what_was_sealed() {
        let sealed = seal("one", b"p", b"text".to_vec()).unwrap();
        assert_eq!(open("one", b"p", &sealed).unwrap(), b"text");
        assert_eq!(open("one\n", b"p", &sealed).unwrap(), b"text");
        assert_eq!(open("two", b"p", &sealed), Err(Error::Foreign));
        assert_eq!(open("one", b"q", &sealed), Err(Error::Foreign));
        assert_eq!(open("one", b"p", &sealed[..sealed.len() - 1]), Err(Error::Foreign));
        assert_eq!(open("one", b"p", &sealed[..5]), Err(Error::Short));
    }
}

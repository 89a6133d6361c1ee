//! Answers that this host cannot read.
//!
//! A server may answer a request with what is no message of the protocol, or no JSON that is read here: half of a
//! surrogate pair, a number out of range, too many levels, bytes that are no UTF-8. Such an answer must end its call, and
//! no other one. So it becomes an error of the request that it names, with a code that only this host uses. Over HTTP, what
//! comes in the place of an answer, such as the page of a proxy, becomes an error, too.

use rmcp::model::{ErrorCode, ErrorData, RequestId, ServerJsonRpcMessage};

/// The code of an error that stands for an answer that cannot be read. JSON-RPC reserves no code near it.
pub(super) const UNREADABLE: i32 = i32::MIN;
/// The code of an error that stands for something else than an answer. Nobody knows whether the server was asked.
pub(super) const NO_ANSWER: i32 = i32::MIN + 1;
/// The most requests that one text answers: a batch, of which nothing more is read.
const MAX_ANSWERED: usize = 64;

/// The error that stands for an answer.
pub(super) fn answer(id: RequestId, why: &serde_json::Error) -> ServerJsonRpcMessage {
    let error = ErrorData::new(ErrorCode(UNREADABLE), why.to_string(), None);
    ServerJsonRpcMessage::error(error, Some(id))
}

/// The error that stands for something else than an answer.
pub(super) fn no_answer(id: RequestId, why: String) -> ServerJsonRpcMessage {
    ServerJsonRpcMessage::error(ErrorData::new(ErrorCode(NO_ANSWER), why, None), Some(id))
}

/// The requests that a text seems to answer, which need not be JSON: the ids of its objects that have `result` or
/// `error`. What also has `method` is a request of the server.
pub(super) fn answered(text: &[u8]) -> Vec<RequestId> {
    let mut ids = Vec::new();
    let mut scanner = Scanner { text, at: 0 };
    match scanner.next() {
        Some(Token::Open(b'{')) => ids.extend(scanner.object()),
        Some(Token::Open(_)) => {
            while let Some(token) = scanner.next() {
                match token {
                    Token::Open(b'{') if ids.len() < MAX_ANSWERED => ids.extend(scanner.object()),
                    Token::Mark(b',') => {}
                    Token::Open(_) | Token::Close | Token::Mark(_) | Token::Text(_) | Token::Word(_) => break,
                }
            }
        }
        Some(Token::Close | Token::Mark(_) | Token::Text(_) | Token::Word(_)) | None => {}
    }
    ids
}

/// A part of a text that may be JSON.
#[derive(Debug, Clone, Copy)]
enum Token<'a> {
    /// The begin of an object or an array.
    Open(u8),
    Close,
    /// A comma or a colon.
    Mark(u8),
    /// A string, as it is written between its quotes.
    Text(&'a [u8]),
    /// A number, or anything else.
    Word(&'a [u8]),
}

/// Reads tokens, and does not care whether they are JSON.
#[derive(Debug)]
struct Scanner<'a> {
    text: &'a [u8],
    at: usize,
}

impl<'a> Scanner<'a> {
    fn next(&mut self) -> Option<Token<'a>> {
        while self.text.get(self.at)?.is_ascii_whitespace() {
            self.at += 1;
        }
        let start = self.at;
        self.at += 1;
        Some(match self.text[start] {
            open @ (b'{' | b'[') => Token::Open(open),
            b'}' | b']' => Token::Close,
            mark @ (b',' | b':') => Token::Mark(mark),
            b'"' => {
                let mut is_escaped = false;
                let rest = &self.text[self.at..];
                let end = rest.iter().position(|&byte| {
                    let ends = byte == b'"' && !is_escaped;
                    is_escaped = byte == b'\\' && !is_escaped;
                    ends
                })?;
                self.at += end + 1;
                Token::Text(&rest[..end])
            }
            _ => {
                let is_word = |byte: &u8| !byte.is_ascii_whitespace() && !b"{}[],:\"".contains(byte);
                let length = self.text[start..].iter().take_while(|byte| is_word(byte)).count();
                self.at = start + length;
                Token::Word(&self.text[start..self.at])
            }
        })
    }

    /// Reads the rest of an object, or as much as there is of it. Returns the id of the request that it answers.
    fn object(&mut self) -> Option<RequestId> {
        let (mut id, mut is_answer, mut is_request) = (None, false, false);
        let mut depth = 0_u32;
        let (mut member, mut last): (Option<&[u8]>, Option<&[u8]>) = (None, None);
        while let Some(token) = self.next() {
            match (token, depth) {
                (Token::Close, 0) => break,
                (Token::Close, _) => depth -= 1,
                (Token::Open(_), _) => depth += 1,
                (Token::Mark(b':'), 0) => {
                    member = last;
                    is_answer |= matches!(member, Some(b"result" | b"error"));
                    is_request |= member == Some(b"method");
                }
                (Token::Mark(_), 0) => member = None,
                (Token::Text(text), 0) => {
                    if member == Some(b"id") {
                        let text = std::str::from_utf8(text).ok();
                        id = text.map(|text| RequestId::String(text.into()));
                    }
                    last = Some(text);
                }
                (Token::Word(word), 0) if member == Some(b"id") => {
                    let number = std::str::from_utf8(word).ok().and_then(|word| word.parse().ok());
                    id = number.map(RequestId::Number);
                }
                (Token::Mark(_) | Token::Text(_) | Token::Word(_), _) => {}
            }
        }
        id.filter(|_| is_answer && !is_request)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_told_from_anything_else_though_it_is_no_json() {
        let number = |n| vec![RequestId::Number(n)];
        let deep = format!(r#"{{"id":3,"result":{}}}"#, "[".repeat(10_000));
        for (text, ids) in [
            (
                &br#"{"jsonrpc":"2.0","id":5,"result":{"text":"\ud800 \" }"}}"#[..],
                number(5),
            ),
            (br#" {"result" : {"id": 1, "n": 1e400}, "id" : 7 } "#, number(7)),
            (b"{\"id\":2,\"result\":{\"text\":\"\xe9\"}}", number(2)),
            (br#"{"id":2,"error":{"code":"x"}}"#, number(2)),
            (br#"{"id":2,"id":2,"result":NaN}"#, number(2)),
            (br#"{"id":2,"result":{"text":"cut"#, number(2)),
            (
                br#"[{"id":2,"result":1},{"id":3,"error":{}}]"#,
                vec![RequestId::Number(2), RequestId::Number(3)],
            ),
            (br#"{"id":"a","result":1}"#, vec![RequestId::String("a".into())]),
            (deep.as_bytes(), number(3)),
            (br#"{"id":2,"method":"roots/list","result":1}"#, Vec::new()),
            (br#"{"id":2,"message":"{\"result\":1}"}"#, Vec::new()),
            (br#"{"inner":{"id":2,"result":1}}"#, Vec::new()),
            (br#"{"id":[2],"result":1}"#, Vec::new()),
            (br#"{"id":null,"result":1}"#, Vec::new()),
            (b"starting: {\"id\":2,\"result\":1}", Vec::new()),
            (b"[[[[", Vec::new()),
            (b"\"", Vec::new()),
            (b"", Vec::new()),
        ] {
            assert_eq!(answered(text), ids, "{}", String::from_utf8_lossy(text));
        }
        let many = format!("[{}]", r#"{"id":1,"result":1},"#.repeat(MAX_ANSWERED + 1));
        assert_eq!(answered(many.as_bytes()).len(), MAX_ANSWERED);
    }
}

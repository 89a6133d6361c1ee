"""Signed cards, verified by libraries that nobody here wrote: python a2a_card_signature.py BASE_URL API_KEY

Every form of every card is canonicalised by rfc8785 and verified by PyJWT as it came, and the cards that the A2A SDK
reads are verified by the SDK. Exits non-zero at the first surprise.
"""

import base64
import copy
import json
import sys

import httpx
import jwt
import rfc8785
from a2a.types.a2a_pb2 import AgentCard
from a2a.utils.signing import InvalidSignaturesError, create_signature_verifier
from google.protobuf.json_format import ParseDict

BASE, KEY = sys.argv[1].rstrip("/"), sys.argv[2]
ALGORITHMS = ["EdDSA", "ES256"]


def expect(claim, what):
    if not claim:
        raise SystemExit(f"signatures: not so: {what}")


def decode(text):
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


def encode(data):
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


class Keys:
    """The published keys, asked for as a verifier would: by the names in the header of a signature."""

    def __init__(self, http):
        self.http, self.seen = http, {}

    def __call__(self, kid, jku):
        expect(jku == f"{BASE}/.well-known/jwks.json", f"the keys are at {jku}")
        if jku not in self.seen:
            self.seen[jku] = jwt.PyJWKSet.from_dict(self.http.get(jku).raise_for_status().json())
        return self.seen[jku][kid]


def verified_as_it_came(card, keys):
    """The algorithms whose signatures hold over the document itself."""
    signed = {name: value for name, value in card.items() if name != "signatures"}
    payload = encode(rfc8785.dumps(signed))
    held = []
    for signature in card["signatures"]:
        header = json.loads(decode(signature["protected"]))
        expect(header["typ"] == "JOSE", header)
        token = f"{signature['protected']}.{payload}.{signature['signature']}"
        try:
            jwt.api_jws.decode(token, keys(header["kid"], header["jku"]), algorithms=[header["alg"]])
        except jwt.InvalidSignatureError:
            continue
        held.append(header["alg"])
    return held


def check(name, card, keys, is_new):
    expect(verified_as_it_came(card, keys) == ALGORITHMS, f"{name} verifies as it came")
    bad = copy.deepcopy(card)
    bad["name"] += "!"
    expect(verified_as_it_came(bad, keys) == [], f"{name} changed does not")
    if not is_new:
        return
    read = ParseDict(card, AgentCard(), ignore_unknown_fields=True)
    for algorithm in ALGORITHMS:
        create_signature_verifier(keys, [algorithm])(read)
    read.name += "!"
    try:
        create_signature_verifier(keys, ALGORITHMS)(read)
    except InvalidSignaturesError:
        return
    raise SystemExit(f"signatures: the SDK takes {name} changed")


def main():
    http = httpx.Client(trust_env=False)
    keys = Keys(http)
    cards = 0
    for place in ["", "/a2a/w/campaign-brief"]:
        for version in [None, "1.0", "0.3"]:
            headers = {"A2A-Version": version} if version else {}
            answer = http.get(f"{BASE}{place}/.well-known/agent-card.json", headers=headers)
            check(f"the card at '{place}' for {version}", answer.raise_for_status().json(), keys, version != "0.3")
            cards += 1
    for version, method in [("1.0", "GetExtendedAgentCard"), ("", "agent/getAuthenticatedExtendedCard")]:
        headers = {"Authorization": f"Bearer {KEY}", "A2A-Version": version}
        request = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {}}
        answer = http.post(f"{BASE}/a2a", headers=headers, json=request).raise_for_status().json()
        check(method, answer["result"], keys, version == "1.0")
        cards += 1
    print(f"{cards} cards verified")


main()

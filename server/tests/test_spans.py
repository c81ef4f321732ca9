"""What a step's span says, without a collector: who it links to."""

from penstock.engine.spans import requests_of


def test_each_traced_request_is_linked_to_once_in_the_order_of_its_rows() -> None:
    first, second = bytes(range(1, 25)), bytes(range(101, 125))
    found = requests_of(first + second + first)
    assert [format(request.trace_id, "032x") for request in found] == [first[:16].hex(), second[:16].hex()]
    assert [format(request.span_id, "016x") for request in found] == [first[16:].hex(), second[16:].hex()]
    assert all(request.is_valid and request.is_remote and request.trace_flags.sampled for request in found)

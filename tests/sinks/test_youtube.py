"""Captions of a YouTube stream: numbers, times and its clock."""

from datetime import UTC, datetime, timedelta

from streamer.sinks.youtube import YouTube
from tests.sinks.stand_ins import CaptionService, WebStandIn, final, sending, spoken


def test_youtube_gets_lines_with_their_times_by_its_own_clock() -> None:
    service = CaptionService()
    service.clock = datetime.now(UTC) + timedelta(hours=1)
    began_s = 1_700_000_000.0
    with WebStandIn(service) as stand_in:
        url = f"http://127.0.0.1:{stand_in.port}/closedcaption?cid=x"
        with sending(YouTube(url, lambda position_s: began_s + position_s)) as output:
            words = ["captions"] * 12
            output.handle(spoken(1, *words))
            service.wait_for(1)
            service.faults = [(None, True), ((200, b"no time"), True), ((200, b"9999-12-31T23:59:59"), True)]
            for number in (2, 3, 4):  # it tells its clock, and then rubbish
                output.handle(final(number))
    first, second, third, fourth = (
        text.splitlines() for text in (request.body.decode("utf-8") for request in service.taken)
    )
    assert first == ["2023-11-14T22:13:30.000", " ".join(words[:7]), "2023-11-14T22:13:33.500", " ".join(words[7:])]
    for number, (time_text, text) in ((2, second), (3, third), (4, fourth)):
        said = datetime.fromisoformat(f"{time_text}+00:00").timestamp() - began_s - number
        assert 3590 < said < 3610
        assert text == f"Words {number}."
    numbers = [int(request.query["seq"]) for request in service.taken]
    assert numbers == list(range(numbers[0], numbers[0] + 4))
    assert numbers[0] > 1_600_000_000  # and so more than in any run before

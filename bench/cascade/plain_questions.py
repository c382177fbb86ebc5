"""Questions with one right answer that a model of 135 M parameters may know, as `--questions` of `--real` takes them.

    python -m bench.cascade.plain_questions [--kind NAME ...] >questions.jsonl

Capitals and their countries, sums, products and differences of small numbers, numerals, and copies. PATTERN is what to
compare of an answer.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator

PATTERN = r"\d+|\b[A-Z][a-z]+\b"
"""The last number or name of an answer."""

CAPITALS = """
Albania Tirana, Algeria Algiers, Angola Luanda, Armenia Yerevan, Australia Canberra, Austria Vienna, Azerbaijan Baku,
Bahrain Manama, Bangladesh Dhaka, Belgium Brussels, Bulgaria Sofia, Canada Ottawa, Chile Santiago,
China Beijing, Croatia Zagreb, Cuba Havana, Cyprus Nicosia, Denmark Copenhagen, Ecuador Quito, Egypt Cairo,
Estonia Tallinn, Fiji Suva, Finland Helsinki, France Paris, Georgia Tbilisi, Germany Berlin, Ghana Accra, Greece Athens,
Hungary Budapest, Iceland Reykjavik, Indonesia Jakarta, Iran Tehran, Iraq Baghdad, Ireland Dublin, Israel Jerusalem,
Italy Rome, Jamaica Kingston, Japan Tokyo, Jordan Amman, Kenya Nairobi, Latvia Riga, Lebanon Beirut, Liberia Monrovia,
Libya Tripoli, Lithuania Vilnius, Madagascar Antananarivo, Malawi Lilongwe, Mali Bamako, Malta Valletta, Morocco Rabat,
Mozambique Maputo, Namibia Windhoek, Nepal Kathmandu, Netherlands Amsterdam, Nicaragua Managua, Nigeria Abuja,
Norway Oslo, Oman Muscat, Pakistan Islamabad, Paraguay Asuncion, Peru Lima, Philippines Manila, Poland Warsaw,
Portugal Lisbon, Qatar Doha, Romania Bucharest, Russia Moscow, Rwanda Kigali, Senegal Dakar, Serbia Belgrade,
Slovakia Bratislava, Slovenia Ljubljana, Somalia Mogadishu, Spain Madrid, Sudan Khartoum, Sweden Stockholm,
Switzerland Bern, Syria Damascus, Thailand Bangkok, Tunisia Tunis, Turkey Ankara, Uganda Kampala, Ukraine Kyiv,
Uruguay Montevideo, Venezuela Caracas, Vietnam Hanoi, Zambia Lusaka, Zimbabwe Harare
"""
SMALL = """
zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen
eighteen nineteen
"""
TENS = ("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")

Pairs = Iterator[tuple[str, str]]


def _places() -> Pairs:
    """Yield countries and capitals."""
    for pair in CAPITALS.split(","):
        country, capital = pair.split()
        yield country, capital


def capitals() -> Pairs:
    """Yield a question for the capital of each country."""
    for country, capital in _places():
        yield f"What is the capital of {country}? Answer with its name.", capital


def countries() -> Pairs:
    """Yield a question for the country of each capital."""
    for country, capital in _places():
        yield f"In which country is {capital}? Answer with its name.", country


def sums() -> Pairs:
    """Yield sums."""
    for first in range(2, 22):
        for second in range(2, 14):
            yield f"What is {first} + {second}? Answer with the number.", str(first + second)


def products() -> Pairs:
    """Yield products."""
    for first in range(2, 13):
        for second in range(2, 13):
            yield f"What is {first} * {second}? Answer with the number.", str(first * second)


def differences() -> Pairs:
    """Yield differences."""
    for first in range(5, 25):
        for second in range(1, min(first, 13), 2):
            yield f"What is {first} - {second}? Answer with the number.", str(first - second)


def numerals() -> Pairs:
    """Yield words for numbers that shall be written in digits."""
    small = SMALL.split()
    for number in range(100):
        tens, ones = divmod(number, 10)
        word = small[number] if number < len(small) else " ".join((TENS[tens - 2], small[ones])[: 1 + (ones > 0)])
        yield f"Write the number {word} in digits.", str(number)


def copies() -> Pairs:
    """Yield numbers that shall be repeated."""
    for number in range(11, 1000, 9):
        yield f"Repeat this number: {number}", str(number)


KINDS: dict[str, Callable[[], Pairs]] = {
    kind.__name__: kind for kind in (capitals, countries, sums, products, differences, numerals, copies)
}


def plain_questions(kinds: tuple[str, ...] = tuple(KINDS)) -> Pairs:
    """Yield questions and their answers."""
    for kind in kinds:
        yield from KINDS[kind]()


def main() -> None:
    parser = argparse.ArgumentParser(description="Questions with one right answer.")
    parser.add_argument("--kind", action="append", choices=KINDS, help="repeatable (default: all)")
    for question, answer in plain_questions(tuple(parser.parse_args().kind or KINDS)):
        print(json.dumps({"question": question, "answer": answer}))


if __name__ == "__main__":
    main()

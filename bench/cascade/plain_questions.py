"""Questions with one right answer that a model of 135 M parameters may know, as `--questions` of `--real` takes them.

    python -m bench.cascade.plain_questions >questions.jsonl

Capitals, their countries, and sums and products of small numbers. PATTERN is what to compare of an answer.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

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


def plain_questions() -> Iterator[tuple[str, str]]:
    """Yield questions and their answers."""
    for pair in CAPITALS.split(","):
        country, capital = pair.split()
        yield f"What is the capital of {country}? Answer with its name.", capital
        yield f"In which country is {capital}? Answer with its name.", country
    for first in range(2, 12):
        for second in range(2, 12):
            yield f"What is {first} + {second}? Answer with the number.", str(first + second)
            yield f"What is {first} * {second}? Answer with the number.", str(first * second)


if __name__ == "__main__":
    for question, answer in plain_questions():
        print(json.dumps({"question": question, "answer": answer}))

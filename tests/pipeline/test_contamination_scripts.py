"""Evaluation items in scripts that are written without spaces."""

import os
import random
import re
import unicodedata

import pytest

from pipeline.clean.decontamination.items import find_item_ngrams
from tests.support.held_items import find_held

EXHAUSTIVE = bool(os.environ.get("TOKENMILL_EXHAUSTIVE_TESTS"))
CLEAN = 2000 if EXHAUSTIVE else 100
PLANTED = 40 if EXHAUSTIVE else 20  # of fewer, a search that loses one in ten would find all; they take 0.1 s


WORDS = {
    # Function words; other words; comma, full stop, question mark.
    "Chinese": (
        "的 了 在 是 和 有 把 对 从 也 就 都 为 与 被",
        "学生 老师 学校 城市 河流 火车 苹果 书店 图书馆 天气 医院 朋友 电影 音乐 科学 历史 经济 市场 政府 环境 农民 "
        "工程师 计算 发现 研究 需要 购买 出售 增加 减少 开始 结束 认为 使用 建造 观察 "
        "速度 温度 重量 价格 问题 答案 数字",
        "，。？",
    ),
    "Japanese": (
        "は が を に で と から まで より という ので けれど ならば について",
        "学生 先生 学校 まち 川 電車 りんご 本屋 図書館 天気 病院 ともだち 映画 音楽 科学 歴史 経済 市場 政府 環境 "
        "コンピューター エンジニア データ 調べる 見つける 買った 売ります 増える 減らす 始まる 終わりました 考える "
        "使われる 作って ください 速さ 温度 重さ ねだん 問題 答え 数字 いくつ",
        "、。？",
    ),
    "Thai": (
        "ที่ และ ใน ของ เป็น ได้ ให้ กับ จาก แต่ ว่า จะ ไม่ มี",
        "นักเรียน ครู โรงเรียน เมือง แม่น้ำ รถไฟ ผลไม้ ร้านหนังสือ ห้องสมุด อากาศ โรงพยาบาล เพื่อน ภาพยนตร์ ดนตรี วิทยาศาสตร์ "
        "ประวัติศาสตร์ เศรษฐกิจ ตลาด รัฐบาล สิ่งแวดล้อม ชาวนา วิศวกร คำนวณ ค้นพบ ศึกษา ต้องการ ซื้อ ขาย เพิ่มขึ้น ลดลง "
        "เริ่มต้น สิ้นสุด ความเร็ว อุณหภูมิ น้ำหนัก ราคา ปัญหา คำตอบ จำนวน",
        "   ",
    ),
    "Lao": (
        "ທີ່ ແລະ ໃນ ຂອງ ເປັນ ໄດ້ ໃຫ້ ກັບ ຈາກ ແຕ່ ວ່າ ຈະ ບໍ່ ມີ",
        "ນັກຮຽນ ຄູ ໂຮງຮຽນ ເມືອງ ແມ່ນ້ຳ ລົດໄຟ ໝາກໄມ້ ຮ້ານປຶ້ມ ຫ້ອງສະໝຸດ ອາກາດ ໂຮງໝໍ ໝູ່ ຮູບເງົາ ດົນຕີ ວິທະຍາສາດ ປະຫວັດສາດ "
        "ເສດຖະກິດ ຕະຫຼາດ ລັດຖະບານ ສິ່ງແວດລ້ອມ ຊາວນາ ວິສະວະກອນ ຄິດໄລ່ ຄົ້ນພົບ ສຶກສາ ຕ້ອງການ ຊື້ ຂາຍ ເພີ່ມຂຶ້ນ ຫຼຸດລົງ "
        "ເລີ່ມຕົ້ນ ສິ້ນສຸດ ຄວາມໄວ ອຸນຫະພູມ ນ້ຳໜັກ ລາຄາ ບັນຫາ ຄຳຕອບ ຈຳນວນ",
        "   ",
    ),
    "Khmer": (
        "ដែល និង នៅ របស់ ជា បាន ឱ្យ ជាមួយ ពី ប៉ុន្តែ ថា នឹង មិន មាន",
        "សិស្ស គ្រូ សាលារៀន ទីក្រុង ទន្លេ រថភ្លើង ផ្លែឈើ ហាងសៀវភៅ បណ្ណាល័យ អាកាសធាតុ មន្ទីរពេទ្យ មិត្តភក្តិ ភាពយន្ត តន្ត្រី "
        "វិទ្យាសាស្ត្រ ប្រវត្តិសាស្ត្រ សេដ្ឋកិច្ច ផ្សារ រដ្ឋាភិបាល បរិស្ថាន កសិករ វិស្វករ គណនា រកឃើញ សិក្សា ត្រូវការ ទិញ លក់ "
        "កើនឡើង ថយចុះ ចាប់ផ្តើម បញ្ចប់ ល្បឿន សីតុណ្ហភាព ទម្ងន់ តម្លៃ បញ្ហា ចម្លើយ ចំនួន",
        " ។?",
    ),
    "Burmese": (
        "သည် နှင့် တွင် ၏ ကို မှ သို့ ဖြင့် အတွက် လည်း ပြီး သော များ က",
        "ကျောင်းသား ဆရာမ စာသင်ကျောင်း မြို့တော် မြစ်ကြီး ရထား သစ်သီး စာအုပ်ဆိုင် စာကြည့်တိုက် ရာသီဥတု ဆေးရုံ သူငယ်ချင်း ရုပ်ရှင် "
        "ဂီတ သိပ္ပံပညာ သမိုင်း စီးပွားရေး ဈေးကွက် အစိုးရ ပတ်ဝန်းကျင် လယ်သမား အင်ဂျင်နီယာ တွက်ချက် ရှာဖွေ လေ့လာ လိုအပ် ဝယ်ယူ "
        "ရောင်းချ တိုးလာ လျော့နည်း စတင် ပြီးဆုံး အမြန်နှုန်း အပူချိန် အလေးချိန် တန်ဖိုး ပြဿနာ အဖြေ အရေအတွက်",
        "၊။။",
    ),
    "English": (
        "the of in to and a for with from that was by on it",
        "student teacher school city river train apple bookshop library weather hospital friend film music science "
        "history economy market government environment farmer engineer computes found studied needs bought sold rose "
        "fell began ended speed temperature weight price problem answer number",
        ",.?",
    ),
}
SCRIPTS = [name for name in WORDS if name != "English"]
_MARKS = r"[\u0e30-\u0e3a\u0e45-\u0e4e\u0eb0-\u0ebd\u0ec6-\u0ecd\u102b-\u103e\u17b4-\u17d3]"


class TextMaker:
    """Makes sentences of a script; the same seed makes the same."""

    def __init__(self, script: str, seed: int):
        self._random = random.Random(f"{script} {seed}")
        function, content, self._marks = WORDS[script]
        self._gap = " " if script == "English" else ""
        self._function, self._content = function.split(), content.split()
        self._letters = sorted(set(re.sub(_MARKS + r"|\s", "", content)))
        names = random.Random(script)
        parts = [re.findall(rf".{_MARKS}*", word) for word in self._content]
        self._names = [
            "".join(names.choice(parts)[:2] + names.choice(parts)[-2:] + names.choice(parts)[:1]) for _ in range(600)
        ]

    def clause(self, words: int) -> str:
        """Return a clause of so many words."""
        kinds = (self._function, self._content, self._names)
        chosen = [
            self._random.choice(kinds[place % 2 and self._random.choice((1, 1, 2))]) for place in range(1, words + 1)
        ]
        if self._random.random() < 0.2:
            chosen.insert(self._random.randrange(words), str(self._random.randrange(2, 3000)))
        return self._gap.join(chosen)

    def sentence(self) -> str:
        """Return a sentence of one to three clauses."""
        clauses = [self.clause(self._random.randint(5, 12)) for _ in range(self._random.randint(1, 3))]
        return (self._marks[0] + self._gap).join(clauses) + self._marks[1] + self._gap

    def text(self) -> str:
        """Return a document of three to eight sentences."""
        return "".join(self.sentence() for _ in range(self._random.randint(3, 8)))

    def item(self, words: int) -> str:
        """Return a question of one clause."""
        return self.clause(words) + self._marks[2].strip()

    def around(self, item: str) -> str:
        """Return a document with an item inside one of its sentences."""
        inner = item.rstrip(self._marks)
        return self._gap.join([self.text(), self.clause(3), inner, self.clause(4), self.text()])

    def changed(self, item: str) -> str:
        """Return an item with one letter replaced: of English, one word."""
        if self._gap:
            words = item.split()
            words[self._random.randrange(len(words))] = self._random.choice(self._names)
            return " ".join(words)
        places = [place for place, letter in enumerate(item) if letter in self._letters]
        place = self._random.choice(places)
        other = self._random.choice([letter for letter in self._letters if letter != item[place]])
        return item[:place] + other + item[place + 1 :]


def count_found(script: str, words: int) -> tuple[int, int, int]:
    """Return how many items are found verbatim, and changed, and how many are found that no document holds."""
    maker = TextMaker(script, words)
    items = [maker.item(words) for _ in range(2 * PLANTED)]
    clean = [maker.text() for _ in range(CLEAN)]
    planted = [maker.around(item) for item in items[:PLANTED]]
    changed = [maker.around(maker.changed(item)) for item in items[PLANTED:]]
    held = find_held(items, planted + changed + clean)
    own = [document for document, item in held if document == item]
    verbatim = sum(document < PLANTED for document in own)
    return verbatim, len(own) - verbatim, len(held) - len(own)


@pytest.mark.parametrize(("script", "words"), [*((script, 12) for script in SCRIPTS), ("English", 18)])
def test_items_inside_sentences_are_found_in_every_script(script: str, words: int):
    verbatim, changed, false = count_found(script, words)
    assert verbatim >= PLANTED * 38 // 40
    assert changed >= PLANTED * 36 // 40
    assert not false


def test_line_breaks_punctuation_and_other_scripts_hide_no_item():
    item = "小明在2019年用Python写了3个程序，ความเร็วเท่าไร、どれですか？"
    copies = [
        item.replace("了", "\n了").replace("ว", "ว\n\n").replace("す", " す "),
        item.replace("，", "。").replace("？", "的"),
        f"说{item[:-1]}吗",
        item.replace("个", "\u200b个\ufe0f"),
        item.replace("Python", "ＰＹＴＨＯＮ"),
        unicodedata.normalize("NFD", item),
    ]
    others = ["小明在2018年用Rust写了4个程序", "ความเร็วเท่าไร", "3 Python 2019 3"]
    assert find_held([item], [*copies, *others]) == {(number, 0) for number in range(len(copies))}


@pytest.mark.parametrize(
    ("text", "words"), [("法国首都哪", 0), ("法国的首都在哪里", 7), ("ประเทศไทย", 0), ("ประเทศไทยมีกี่จังหวัด", 5)]
)
def test_items_of_three_words_side_by_side_are_searched(text: str, words: int):
    assert find_item_ngrams(memoryview(text.encode()))[1] == words

"""Twelve short scenes in six languages each, so that samples of a scene differ only in language.

Written for this project; translations are close, not literal.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.data.sources.sample import LabelIndex, Sample

TOPICS: Final = (
    "market",
    "rain",
    "school",
    "bread",
    "river",
    "train",
    "garden",
    "night",
    "letter",
    "bridge",
    "music",
    "health",
)

TEXTS: Final[dict[str, tuple[str, ...]]] = {
    "English": (
        "Every Saturday there is a market in the square. The farmers sell apples, cheese and honey, and the children "
        "look at the rabbits.",
        "It has been raining since the morning. The streets are wet, the buses are late, and nobody wants to leave the "
        "house without an umbrella.",
        "The school begins at eight o'clock. In the first lesson the pupils read a story, in the second they learn to "
        "count with fractions.",
        "The baker gets up at three in the night. When the first people go to work, the bread is ready and still warm.",
        "The river is slow and brown here. In spring it floods the meadows, and in summer people swim in it.",
        "The train leaves from platform four. It stops in every village and needs two hours to the sea.",
        "Behind the house there is a small garden with three old trees. My grandmother grows beans, onions and roses "
        "there.",
        "At night the city is quiet. Only a dog barks far away, and a lamp burns in the window of the pharmacy.",
        "Yesterday I got a letter from my brother. He writes that he has found work and will visit us in the winter.",
        "The new bridge was opened by the mayor on Monday. It is longer than the old one and has a path for bicycles.",
        "On Sunday the musicians play in the park. The old people sit on the benches, and the young ones dance.",
        "The doctor says that water, sleep and a walk every day are important. She does not like it when people smoke.",
    ),
    "German": (
        "Jeden Samstag ist auf dem Platz Markt. Die Bauern verkaufen Äpfel, Käse und Honig, und die Kinder schauen "
        "sich die Kaninchen an.",
        "Seit dem Morgen regnet es. Die Straßen sind nass, die Busse haben Verspätung, und niemand will ohne "
        "Regenschirm aus dem Haus gehen.",
        "Die Schule beginnt um acht Uhr. In der ersten Stunde lesen die Schüler eine Geschichte, in der zweiten lernen "
        "sie, mit Brüchen zu rechnen.",
        "Der Bäcker steht um drei Uhr in der Nacht auf. Wenn die ersten Leute zur Arbeit gehen, ist das Brot fertig "
        "und noch warm.",
        "Der Fluss ist hier langsam und braun. Im Frühling überschwemmt er die Wiesen, und im Sommer baden die "
        "Menschen darin.",
        "Der Zug fährt von Gleis vier ab. Er hält in jedem Dorf und braucht zwei Stunden bis zum Meer.",
        "Hinter dem Haus liegt ein kleiner Garten mit drei alten Bäumen. Meine Großmutter zieht dort Bohnen, Zwiebeln "
        "und Rosen.",
        "In der Nacht ist die Stadt still. Nur ein Hund bellt in der Ferne, und im Fenster der Apotheke brennt eine "
        "Lampe.",
        "Gestern habe ich einen Brief von meinem Bruder bekommen. Er schreibt, dass er Arbeit gefunden hat und uns im "
        "Winter besuchen wird.",
        "Die neue Brücke wurde am Montag vom Bürgermeister eröffnet. Sie ist länger als die alte und hat einen Weg für "
        "Fahrräder.",
        "Am Sonntag spielen die Musiker im Park. Die alten Leute sitzen auf den Bänken, und die jungen tanzen.",
        "Die Ärztin sagt, dass Wasser, Schlaf und jeden Tag ein Spaziergang wichtig sind. Sie mag es nicht, wenn "
        "jemand raucht.",
    ),
    "Swahili": (
        "Kila Jumamosi kuna soko katika uwanja. Wakulima wanauza matunda, maziwa na asali, na watoto wanatazama "
        "sungura.",
        "Mvua imekuwa ikinyesha tangu asubuhi. Barabara zimelowa, mabasi yamechelewa, na hakuna mtu anayetaka kutoka "
        "nyumbani bila mwavuli.",
        "Shule inaanza saa mbili asubuhi. Katika somo la kwanza wanafunzi wanasoma hadithi, katika la pili wanajifunza "
        "hesabu.",
        "Mwokaji mikate anaamka saa tisa usiku. Watu wa kwanza wanapokwenda kazini, mkate uko tayari na bado una moto.",
        "Mto huu unapita polepole na maji yake ni ya rangi ya udongo. Wakati wa masika hufurika, na wakati wa kiangazi "
        "watu huogelea humo.",
        "Treni inaondoka kutoka jukwaa la nne. Inasimama katika kila kijiji na inachukua saa mbili kufika baharini.",
        "Nyuma ya nyumba kuna bustani ndogo yenye miti mitatu ya zamani. Bibi yangu analima maharagwe, vitunguu na "
        "maua huko.",
        "Usiku mji huwa kimya. Mbwa mmoja tu anabweka kwa mbali, na taa inawaka katika dirisha la duka la dawa.",
        "Jana nilipata barua kutoka kwa kaka yangu. Anaandika kwamba amepata kazi na atatutembelea mwishoni mwa mwaka.",
        "Daraja jipya lilifunguliwa na meya siku ya Jumatatu. Ni refu kuliko la zamani na lina njia ya baiskeli.",
        "Siku ya Jumapili wanamuziki wanapiga muziki katika bustani. Wazee wanakaa kwenye viti, na vijana wanacheza.",
        "Daktari anasema kwamba maji, usingizi na matembezi ya kila siku ni muhimu kwa afya. Hapendi watu wanapovuta "
        "sigara.",
    ),
    "Arabic": (
        "في كل يوم سبت يقام سوق في الساحة. يبيع الفلاحون التفاح والجبن والعسل، وينظر الأطفال إلى الأرانب.",
        "المطر ينزل منذ الصباح. الشوارع مبللة والحافلات متأخرة، ولا يريد أحد أن يخرج من البيت بلا مظلة.",
        "تبدأ المدرسة في الساعة الثامنة. في الدرس الأول يقرأ التلاميذ قصة، وفي الدرس الثاني يتعلمون الحساب.",
        "يستيقظ الخباز في الساعة الثالثة ليلا. وعندما يذهب الناس إلى العمل يكون الخبز جاهزا وما زال ساخنا.",
        "النهر هنا بطيء ولونه بني. في الربيع يغمر الحقول، وفي الصيف يسبح الناس فيه.",
        "يغادر القطار من الرصيف الرابع. يتوقف في كل قرية ويحتاج إلى ساعتين حتى يصل إلى البحر.",
        "خلف البيت حديقة صغيرة فيها ثلاث أشجار قديمة. تزرع جدتي هناك الفول والبصل والورد.",
        "في الليل تكون المدينة هادئة. كلب واحد ينبح من بعيد، ومصباح يضيء في نافذة الصيدلية.",
        "أمس وصلتني رسالة من أخي. يكتب أنه وجد عملا وأنه سيزورنا في الشتاء.",
        "افتتح رئيس البلدية الجسر الجديد يوم الاثنين. هو أطول من الجسر القديم وفيه طريق للدراجات.",
        "في يوم الأحد يعزف الموسيقيون في الحديقة العامة. يجلس الكبار على المقاعد ويرقص الشباب.",
        "تقول الطبيبة إن الماء والنوم والمشي كل يوم أمور مهمة للصحة. وهي لا تحب أن يدخن الناس.",
    ),
    "Chinese": (
        "每个星期六广场上都有集市。农民卖苹果、奶酪和蜂蜜，孩子们看兔子。",
        "从早上开始一直在下雨。街道很湿，公共汽车晚点了，没有人想不带雨伞就出门。",
        "学校八点开始上课。第一节课学生们读一个故事，第二节课他们学习分数。",
        "面包师夜里三点起床。当第一批人去上班的时候，面包已经做好了，还是热的。",
        "这里的河水很慢，颜色发黄。春天它淹没草地，夏天人们在河里游泳。",
        "火车从四号站台出发。它在每个村子都停，到海边需要两个小时。",
        "房子后面有一个小花园，里面有三棵老树。我的祖母在那里种豆子、洋葱和玫瑰。",
        "夜里城市很安静。只有一只狗在远处叫，药店的窗户里亮着一盏灯。",
        "昨天我收到了哥哥的一封信。他写道，他找到了工作，冬天会来看我们。",
        "新桥在星期一由市长宣布开放。它比旧桥长，还有一条自行车道。",
        "星期天音乐家们在公园里演奏。老人坐在长椅上，年轻人跳舞。",
        "医生说，喝水、睡觉和每天散步都很重要。她不喜欢别人抽烟。",
    ),
    "Ukrainian": (
        "Щосуботи на площі працює ринок. Селяни продають яблука, сир і мед, а діти дивляться на кроликів.",
        "Дощ іде з самого ранку. Вулиці мокрі, автобуси запізнюються, і ніхто не хоче виходити з дому без парасольки.",
        "Школа починається о восьмій годині. На першому уроці учні читають оповідання, на другому вчаться рахувати "
        "дроби.",
        "Пекар встає о третій годині ночі. Коли перші люди йдуть на роботу, хліб уже готовий і ще теплий.",
        "Річка тут повільна і темна. Навесні вона заливає луки, а влітку люди в ній купаються.",
        "Поїзд відправляється з четвертої платформи. Він зупиняється в кожному селі і їде до моря дві години.",
        "За будинком є маленький сад із трьома старими деревами. Моя бабуся вирощує там квасолю, цибулю і троянди.",
        "Уночі місто тихе. Лише десь далеко гавкає собака, і у вікні аптеки горить лампа.",
        "Учора я отримав листа від брата. Він пише, що знайшов роботу і приїде до нас узимку.",
        "Новий міст відкрив мер у понеділок. Він довший за старий і має доріжку для велосипедів.",
        "У неділю музиканти грають у парку. Старші люди сидять на лавках, а молоді танцюють.",
        "Лікарка каже, що вода, сон і щоденна прогулянка дуже важливі для здоров'я. Вона не любить, коли люди курять.",
    ),
}


class LanguageSource:
    """Scene by scene, each in all six languages; the language is the label."""

    has_masks = False

    def __init__(self) -> None:
        self._samples = [
            Sample(None, texts[topic], language, f"{TOPICS[topic]} in {language}")
            for topic in range(len(TOPICS))
            for language, texts in TEXTS.items()
        ]
        self.index = LabelIndex.of([sample.label for sample in self._samples])

    def read(self, rows: Sequence[int]) -> Iterator[Sample | UserError]:
        for row in rows:
            yield self._samples[row]

"""The words and the patterns that sentences.made puts together.

In a word, an underscore stands for a space. In a pattern, {name} stands for one entry of SLOTS, or for what the
function of that name in sentences.py gives; {vp:ing}, {noun:thing}, {the:thing} and {plural:thing} for a form of it.
"""


def entries(text: str) -> tuple[str, ...]:
    """The words of `text`, with spaces for underscores."""
    return tuple(word.replace("_", " ") for word in text.split())


FIRST_NAMES = entries("""
Aaron Abby Abigail Adam Adrian Agnes Ahmed Alan Albert Alex Alexander Alice Alicia Allison Amanda Amber Amelia Amy
Andrea Andrew Angela Anita Ann Anna Anne Annie Anthony Antonio April Arthur Ashley Audrey Austin Barbara Beatrice
Becky Ben Benjamin Bernard Beth Betty Beverly Bill Billy Bob Bonnie Brad Bradley Brandon Brenda Brian Bruce Bryan
Caleb Calvin Cameron Carl Carla Carlos Carmen Carol Caroline Carolyn Catherine Cathy Cecilia Chad Charles Charlie
Charlotte Chelsea Cheryl Chloe Chris Christian Christina Christine Christopher Cindy Claire Clara Clarence Claudia
Clifford Colin Connie Connor Craig Crystal Curtis Cynthia Daisy Dale Dan Daniel Danielle David Dawn Dean Deborah
Debra Denise Dennis Derek Diana Diane Dominic Don Donald Donna Doris Dorothy Douglas Duncan Dylan Earl Eddie Edgar
Edith Edward Edwin Eileen Elaine Eleanor Elena Eli Elijah Elizabeth Ella Ellen Emily Emma Eric Erica Erin Ernest
Ethan Eugene Eva Evan Evelyn Fatima Felix Fiona Florence Frances Francis Frank Franklin Fred Frederick Gabriel Gary
George Gerald Gilbert Gina Gloria Gordon Grace Graham Grant Greg Gregory Hannah Harold Harry Harvey Heather Hector
Helen Henry Herbert Holly Howard Hugh Hugo Ian Irene Iris Isaac Isabel Isabella Ivan Jack Jackie Jacob Jacqueline
Jake James Jamie Jane Janet Janice Jared Jason Jasmine Jean Jeff Jeffrey Jennifer Jenny Jeremy Jerry Jesse Jessica
Jill Jim Jimmy Joan Joanna Joe Joel John Johnny Jonathan Jordan Joseph Joshua Joyce Juan Juanita Judith Judy Julia
Julian Julie June Justin Karen Karl Kate Katherine Kathleen Kathy Katie Kayla Keith Kelly Ken Kenneth Kevin Kim
Kimberly Kyle Lance Larry Laura Lauren Lawrence Leah Lee Leo Leonard Leslie Lewis Liam Lillian Lily Linda Lisa Lloyd
Logan Lois Lori Louis Louise Lucas Lucy Luis Luke Lydia Maggie Malcolm Marcus Margaret Maria Marie Marilyn Mario
Marion Marjorie Mark Marsha Martha Martin Marvin Mary Mason Matt Matthew Maurice Max Maxine Megan Melanie Melissa
Mercedes Michael Michelle Miguel Mike Mildred Miles Milton Mitchell Mohammed Molly Monica Morgan Nancy Naomi Natalie
Nathan Neil Nicholas Nick Nicole Nina Noah Nora Norman Oliver Olivia Omar Oscar Owen Paige Pamela Patricia Patrick
Paul Paula Pauline Pedro Peggy Penny Percy Peter Philip Phillip Phoebe Phyllis Priya Rachel Ralph Ramon Randy
Raymond Rebecca Regina Rhonda Ricardo Richard Rick Rita Robert Robin Rodney Roger Roland Ron Ronald Rosa Rose Ross
Roy Ruby Russell Ruth Ryan Sally Sam Samantha Samuel Sandra Sara Sarah Scott Sean Sebastian Sergio Seth Shannon
Sharon Shawn Sheila Shirley Sidney Simon Sofia Sonia Sophia Sophie Stacy Stanley Stella Stephanie Stephen Steve
Steven Stuart Sue Susan Suzanne Sylvia Tamara Tara Ted Teresa Terry Theodore Theresa Thomas Tiffany Tim Timothy Tina
Todd Tom Tommy Toni Tony Tracy Travis Trevor Tyler Valerie Vanessa Vera Vernon Veronica Vicky Victor Victoria
Vincent Viola Violet Virginia Vivian Walter Wanda Warren Wayne Wendy William Willie Yolanda Yvonne Zachary Zoe
""")

FAMILY_NAMES = entries("""
Adams Alexander Allen Anderson Andrews Armstrong Arnold Atkins Austin Bailey Baker Baldwin Barker Barnes Barrett
Barton Bates Beck Bell Bennett Berry Bishop Black Blair Blake Bond Bowen Boyd Bradley Brady Brooks Brown Bryant
Burke Burns Burton Butler Byrd Caldwell Campbell Carpenter Carr Carroll Carter Castillo Chambers Chandler Chang
Chapman Chavez Chen Clark Cohen Cole Coleman Collins Conner Cook Cooper Cox Craig Crawford Cross Cruz Cunningham
Curry Curtis Daniels Davidson Davis Dawson Dean Delgado Diaz Dixon Douglas Doyle Duncan Dunn Edwards Elliott Ellis
Evans Farmer Ferguson Fernandez Fields Fisher Fitzgerald Fleming Fletcher Flores Ford Foster Fowler Fox Francis
Franklin Freeman French Fuller Garcia Gardner Garner Garrett Gibbs Gibson Gilbert Gomez Gonzales Goodman Goodwin
Gordon Graham Grant Graves Gray Green Greene Griffin Griffith Gupta Hall Hamilton Hammond Hampton Hansen Hanson
Harding Harper Harrington Harris Harrison Hart Harvey Hawkins Hayes Haynes Henderson Henry Hernandez Hicks Higgins
Hill Hodges Hoffman Holland Holmes Holt Hopkins Horton Houston Howard Howell Hubbard Hudson Hughes Hunt Hunter
Ingram Jackson Jacobs James Jefferson Jenkins Jennings Jensen Jimenez Johnson Johnston Jones Jordan Joseph Kelley
Kelly Kennedy Khan Kim King Klein Knight Lambert Lane Larson Lawrence Lawson Lee Leonard Lewis Lincoln Little Logan
Long Lopez Love Lowe Lucas Lynch Lyons MacDonald Mann Manning Marsh Marshall Martin Martinez Mason Matthews Maxwell
May McCarthy McCoy McDonald McKenzie Medina Mendoza Meyer Miles Miller Mills Mitchell Montgomery Moore Morales
Moreno Morgan Morris Morrison Morton Moss Mullins Murphy Murray Myers Nash Nelson Newman Newton Nguyen Nichols
Norman Norris Norton Obama O'Brien O'Connor Oliver Olson Ortiz Osborne Owens Page Palmer Park Parker Parsons Patel
Patterson Payne Pearson Perez Perkins Perry Peters Peterson Phelps Phillips Pierce Porter Potter Powell Powers Price
Quinn Ramirez Ramos Ramsey Randall Ray Reed Reese Reid Reynolds Rhodes Rice Richards Richardson Riley Rivera Robbins
Roberts Robertson Robinson Rodriguez Rogers Roosevelt Rose Ross Rowe Russell Ryan Salazar Sanchez Sanders Santiago
Santos Saunders Schmidt Schneider Schultz Schwartz Scott Sharp Shaw Shelton Shepherd Sherman Silva Simmons Simon
Simpson Sims Singh Smith Snyder Sparks Spencer Stanley Steele Stephens Stevens Stewart Stone Strickland Sullivan
Sutton Swanson Tate Taylor Thomas Thompson Thornton Todd Torres Townsend Tran Tucker Turner Underwood Vargas Vasquez
Vaughn Wagner Walker Wallace Walsh Walters Walton Wang Ward Warren Washington Waters Watkins Watson Watts Weaver
Webb Weber Webster Welch Wells West Wheeler White Whitney Wilkins Williams Williamson Willis Wilson Wolf Wong Wood
Woods Wright Yang Young Zimmerman
""")

CITIES = entries("""
Aberdeen Albany Alexandria Amsterdam Athens Atlanta Auckland Austin Baghdad Baltimore Bangkok Barcelona Bath Beijing
Belfast Berlin Birmingham Bombay Boston Bradford Brighton Brisbane Bristol Brussels Budapest Buffalo Cairo Calcutta
Calgary Cambridge Canterbury Cape_Town Cardiff Charleston Chicago Cincinnati Cleveland Columbus Copenhagen Dallas
Delhi Denver Derby Detroit Dover Dubai Dublin Dundee Durham Edinburgh Exeter Florence Frankfurt Geneva Glasgow
Halifax Hamburg Havana Helsinki Hong_Kong Honolulu Houston Istanbul Jakarta Jerusalem Kansas_City Kingston Lagos
Lancaster Las_Vegas Leeds Leicester Lima Lisbon Liverpool London Los_Angeles Lyon Madrid Manchester Manila Marseille
Melbourne Memphis Mexico_City Miami Milan Minneapolis Montreal Moscow Mumbai Munich Nairobi Naples Nashville
New_Orleans New_York Newcastle Norwich Nottingham Oslo Ottawa Oxford Paris Perth Philadelphia Phoenix Pittsburgh
Plymouth Portland Portsmouth Prague Quebec Richmond Rome Sacramento Salt_Lake_City San_Antonio San_Diego
San_Francisco Santiago Seattle Seoul Shanghai Sheffield Singapore Southampton Stockholm Sydney Tampa Tehran Tokyo
Toronto Vancouver Venice Vienna Warsaw Washington Wellington Winchester York Zurich
""")

REGIONS = entries("""
Africa Alabama Alaska America Arizona Argentina Arkansas Asia Australia Austria Belgium Brazil Britain California
Canada Chile China Colombia Colorado Connecticut Cuba Denmark Devon Egypt England Ethiopia Europe Finland Florida
France Georgia Germany Ghana Greece Hawaii Holland Hungary Iceland Idaho Illinois India Indiana Indonesia Iowa Iran
Iraq Ireland Israel Italy Jamaica Japan Jordan Kansas Kent Kentucky Kenya Korea Lebanon Louisiana Maine Malaysia
Maryland Massachusetts Mexico Michigan Minnesota Mississippi Missouri Montana Morocco Nebraska Nevada New_England
New_Jersey New_Mexico New_Zealand Nigeria North_Carolina Norway Ohio Oklahoma Oregon Pakistan Panama Pennsylvania
Peru Poland Portugal Russia Scotland South_Africa South_Carolina Spain Sweden Switzerland Syria Taiwan Tennessee
Texas Thailand Turkey Utah Vermont Vietnam Virginia Wales Wisconsin Wyoming Yorkshire
""")

LANDMARKS = entries("""
the_Amazon the_Danube the_Hudson_River the_Mississippi_River the_Nile the_Ohio_River the_Rhine the_Thames the_Alps
the_Andes the_Atlantic_Ocean the_Pacific_Ocean the_Black_Sea the_Mediterranean_Sea the_North_Sea the_Rocky_Mountains
Lake_Michigan Lake_Superior Mount_Everest Central_Park the_Golden_Gate_Bridge the_White_House the_Eiffel_Tower
the_Tower_of_London the_British_Museum the_Suez_Canal the_Grand_Canyon Niagara_Falls the_Sahara the_Great_Wall
the_English_Channel the_Persian_Gulf Tower_Bridge Yellowstone_Park the_Colorado_River the_Potomac_River Hyde_Park
""")

STREETS = entries("""
Bridge_Street Broad_Street Broadway Cherry_Lane Church_Street Churchill_Avenue College_Road Cedar_Street Elm_Street
Fifth_Avenue Fleet_Street Forest_Drive Franklin_Street Garden_Street George_Street Green_Lane Grove_Road High_Street
Highland_Avenue Hill_Road Jefferson_Avenue King_Street Lake_Drive Liberty_Street Lincoln_Avenue Madison_Avenue
Main_Street Maple_Avenue Market_Street Meadow_Lane Mill_Road North_Road Oak_Street Oxford_Street Park_Avenue
Pine_Street Queen_Street Regent_Street River_Road Second_Avenue South_Street Spring_Street Station_Road
Sunset_Boulevard Third_Street Union_Square Valley_Road Victoria_Road Wall_Street Walnut_Street Washington_Square
West_Street Willow_Lane
""")

PEOPLE = entries("""
actor adult agent architect artist assistant author baby baker banker barber boss bride builder businessman butcher
candidate captain carpenter chairman chef chief child citizen clerk client coach colleague consultant cook cop
customer dancer dentist designer detective developer director doctor driver editor employee engineer expert farmer
firefighter fisherman gardener general gentleman girl boy governor guard guest guide hero host hunter instructor
journalist judge kid king lady landlord lawyer leader librarian manager mayor mechanic member minister musician
neighbor nurse officer operator owner painter partner passenger patient person photographer pilot player plumber
poet police_officer politician president priest prince princess principal producer professor programmer prisoner
queen receptionist reporter researcher sailor salesman scientist secretary senator sergeant servant sheriff singer
soldier speaker spokesman stranger student surgeon tailor teacher technician teenager tenant tourist trainer
traveler victim visitor voter waiter waitress witness woman man worker writer guy fellow thief criminal
""")

RELATIVES = entries("""
aunt best_friend boyfriend brother cousin dad daughter father friend girlfriend grandfather grandmother grandson
husband mom mother nephew niece roommate sister son twin_brother uncle wife family team doctor lawyer boss neighbor
""")

GROUPS = entries("""
administration agency association commission division executive district foundation institute nation parliament
majority army audience band board church class club college committee community company congress council couple
court crew crowd department federal_government firm government group industry jury local_authority military ministry
navy network opposition organization party police population press public school senate staff state team union
university
""")

THINGS = entries("""
album cell iron novel plant soul edition trophy model_train apartment bag ball basket bed bell belt bicycle
bike blanket boat book bottle bowl box brick brush bucket button camera candle cap card carpet chain chair clock
coat computer couch cup curtain desk diamond dish doll door dress drawer drum engine envelope fan fence flag flower
fork frame furniture game garage gate gift glass glove guitar hammer hat headset helmet instrument jacket jewel key
keyboard kite knife ladder lamp light lock machine magazine map mask mattress microphone mirror necklace needle net
newspaper painting pair_of_glasses pair_of_shoes pan parcel pen pencil phone piano picture pillow pin pipe plate
pool pot purse radio refrigerator ring rock rope rug scarf screen seat shade sheet shelf shell shirt shoe sign sink
skirt sofa spoon statue stick stone stool stove suit suitcase sweater sword table tape tent tie tool towel toy tree
truck umbrella vase vehicle violin wallet watch wheel window wire car van bus weapon wood metal product sample
package pocket roof wall floor handle branch
""")

DOCUMENTS = entries("""
address agenda application article bill book budget chapter column contract copy diary document draft email essay
file form history_book invoice journal letter license list manual memo message note novel page paper paragraph
passport poem prescription proposal question receipt recipe record report resume review schedule script sentence
speech statement story summary survey test text ticket title transcript translation version application_form will
word
""")

FOODS = entries("""
apples bacon bananas beans beef bread breakfast broccoli butter cabbage cake candy carrots cereal cheese cherries
chicken chocolate chips cookies corn crackers curry dessert dinner eggs fish french_fries fruit garlic grapes ham
honey ice_cream jam lamb lemons lettuce lunch meat melon mushrooms noodles nuts oatmeal olives onions oranges
pancakes pasta peaches peanuts pears peas pepper pie pizza popcorn pork potatoes pudding pumpkin rice rolls salad
salt sandwiches sauce sausages shrimp snacks soup spaghetti spinach steak stew strawberries sugar supper toast
tomatoes turkey vegetables yogurt
""")

DRINKS = entries("""
beer coffee cola hot_chocolate juice lemonade milk orange_juice red_wine soda sparkling_water tea water whiskey
white_wine green_tea apple_juice champagne
""")

ANIMALS = entries("""
ant bear bee bird bull butterfly camel cat chicken cow crow deer dog dolphin donkey duck eagle elephant fish fly fox
frog goat goose hen horse insect kitten lion lizard monkey mouse owl penguin pig pigeon pony puppy rabbit rat shark
sheep snake spider squirrel swan tiger turtle whale wolf worm
""")

BODY = entries("""
ankle arm back brain chest chin ear elbow eye face finger foot hair hand head heart hip jaw knee leg lip lung mouth
muscle neck nose shoulder skin stomach throat thumb toe tongue tooth wrist bone blood_pressure
""")

ROOMS = entries("""
attic basement bathroom bedroom closet conference_room corner dining_room dressing_room elevator garage garden hall
hallway kitchen laundry_room living_room lobby meeting_room office parking_lot shower studio waiting_room yard
""")

VENUES = entries("""
airport bakery bank bar beach bookstore bus_stop cafe camp castle cathedral cemetery church cinema clinic coast
college concert corner_store countryside courthouse drugstore embassy factory farm festival field fire_station
forest gallery gas_station gym harbor high_school hospital hotel house island jail junction lake library mall market
museum music_hall night_club north_gate ocean opera park pharmacy playground police_station pool port post_office
prison pub railway_station restaurant ranch river salon school seaside shop stadium station store subway supermarket
temple theater town_hall train_station university valley village warehouse wedding zoo border bridge center
front_door south_entrance top_floor ground_floor second_floor
""")

DEVICES = entries("""
air_conditioner alarm battery browser camera car_radio ceiling_fan computer dishwasher display engine fire_alarm
heater heating internet_connection keyboard kitchen_light lamp laptop light lights machine microphone microwave
monitor mouse music oven password_manager phone printer projector radio recorder robot router screen server speaker
speakers subtitles system tablet television timer transcript TV vacuum_cleaner volume washing_machine wifi captions
""")

SOFTWARE = entries("""
account app application archive backup bookmark browser calendar chart code column command connection cursor
dashboard data database desktop device directory download draft drive error_message file folder font graph home_page
icon image inbox index input internet language_model line link log mailbox memory menu message network notebook
notification option output page paragraph password photo playlist presentation program project recording screen
screenshot script search security_code server setting shortcut slide software spreadsheet tab table task template
text user user_name version video voice_mail web_page website window word_count video_call update feature function
object property process
""")

TOPICS = entries("""
adoption advertising agriculture art astronomy banking baseball basic_science behavior beauty biology business
capital charity chemistry child_care Christmas city_planning civil_rights civil_war clean_energy climate_change
clothing college_life communication competition computer_science construction cooking crime culture customer_service
dance death debt defense democracy design development disease divorce drama economics education elections
electricity employment energy engineering equality evolution exercise faith family_life fashion fiction film finance
fishing food_safety football foreign_policy freedom friendship fuel gardening gender geography global_warming gold
grammar gravity happiness health_care history home_ownership human_nature human_rights housing hunting immigration
income industry inflation insurance investment jazz journalism justice knowledge labor land_reform language law
leadership learning literature local_history love magic management manufacturing marketing marriage mathematics
medicine memory mental_health military_history modern_art money morality motion music national_security nature noise
nuclear_power nutrition oil painting parenting peace philosophy photography physics planning poetry policy politics
pollution poverty power prices privacy production progress property psychology public_opinion public_transport
quality race religion research responsibility rock_music romance safety sales science security shopping silence
sleep social_media society software soil solar_power space_travel speech_recognition sports statistics steel stress
success supply_and_demand surgery swimming taxes technology tennis terrorism the_American_dream the_Bible the_budget
the_cold_war the_economy the_election the_environment the_future the_human_body the_law the_market the_media
the_moon the_ocean the_past the_planets the_police the_press the_solar_system the_stock_market the_universe the_war
the_weather the_world theater trade traffic training transportation travel trust truth unemployment violence
virus_protection vision war wealth weight_loss welfare wildlife wine women's_rights world_history writing youth
""")

ABSTRACTS = entries("""
act area amount association attention award battle career campaign commission content core country course credit
deadline distance division document economy edge edition estate evidence foundation fund generation growth
institution league majority material nation negative number parliament presence profile purchase session species
spread surface target tax tour winner zone grade length sale term analysis religion district region location episode
ability accent accident account achievement action activity advantage adventure agreement aim alternative answer
appeal appointment approach argument arrangement aspect assumption attack attempt attitude balance basis beginning
benefit birthday bit_of_luck break case cause challenge chance change character choice circumstance claim clue
collection combination comment comparison compromise concept concern conclusion condition conflict connection
consequence contact context conversation cost crisis criticism cut danger date deal debate decision decrease
definition degree delay demand description detail difference difficulty disaster discovery discussion dream duty
effect effort element emergency emphasis end ending environment error event example exception exchange excuse
existence expectation expense experience experiment explanation expression extent fact factor failure fate fault
favor fear feeling fight figure finding focus force function goal guess habit honor hope idea identity image impact
importance impression improvement incident increase influence information initiative injury instance intention
interest interview issue item job joke journey joy judgment kind lack layer lesson level lie limit link logic loss
luck manner mark matter meaning measure meeting method middle mind minority miracle mission mistake mixture model
moment mood motion move movement mystery need nightmare objection observation occasion offer operation opinion
opportunity option order origin pain part party path pattern pause payment percentage performance period permission
perspective phase phrase picture piece_of_advice place plan pleasure point portion position possibility potential
practice prayer preference pressure principle priority prize problem procedure process product profit program
progress promise proof proportion protest purpose puzzle quantity range rate reaction reality reason recommendation
reduction reference reform relationship relief reply reputation request requirement resource response rest result
return reward rhythm right risk role rule rumor sacrifice scale scandal scene secret section sense series shame
shape share shift shock side signal silence situation size skill solution sound source spirit stage standard start
step story strategy strength structure struggle stuff style subject success suggestion surprise task technique
temperature tendency tension theme theory thing thought threat title tone total touch track trade tradition transfer
transition treatment trend trial trick trip trouble truth turn type understanding unit use value variety version
victory view viewpoint visit voice wage warning waste way weakness wish wonder word work worry
""")

GOOD_BAD = entries("""
absurd amazing awesome awful bad beautiful boring bright brilliant clear comfortable common complete confusing
convenient cool crazy cute dangerous decent delicious difficult disappointing easy effective enormous essential
excellent exciting expensive extraordinary fair false familiar famous fantastic fascinating fast fine free fresh
funny good great handy hard helpful historic horrible huge illegal important impossible impressive incredible
interesting legal lovely lucky magnificent minor natural necessary nice normal obvious odd ordinary outstanding
perfect pleasant popular positive possible powerful practical pretty private public pure quick quiet rare ready
realistic reasonable relevant reliable ridiculous right rough sad safe serious significant silly simple slow smart
special splendid strange stupid suitable super sure surprising sweet tasty terrible tight tiny tough true typical
ugly unexpected unfair unique unlikely unusual urgent useful useless usual valuable vital warm weak weird wonderful
worse wrong
""")

ATTRIBUTES = entries("""
political economic financial commercial cultural industrial regional female male individual religious mobile online
annual daily criminal critical senior united prior prime non_stop advanced active spare human rough round available
classic closer actual distant equal ideal artificial ancient big black blue brand_new broad broken brown cheap clean
cold complex current dark dead deep different digital dirty double dry dull dusty early electric electronic empty
entire extra favorite final first flat foreign former full general giant glass golden gray green heavy high hot huge
independent initial internal international large last late left light local long loose lost loud low main major
massive medical mental metal middle modern narrow national new next nice old orange original other outdoor pale
personal physical pink plain plastic portable previous primary professional proper purple real recent red regular
royal rural scientific second secret separate sharp shiny short silver similar single small smooth social soft solid
specific square standard steep sticky straight strong tall technical temporary thick thin third tiny total
traditional upper urban used various vast visual wet white whole wide wild wooden yellow young
""")

FEELINGS = entries("""
afraid alone angry annoyed anxious ashamed awake aware bored brave busy calm careful certain cheerful clever
confident confused conscious curious depressed disappointed eager embarrassed excited exhausted fine frightened full
generous glad grateful guilty happy healthy homesick honest hungry ill impatient injured innocent interested jealous
kind late lazy lonely lost lucky mad married mean miserable nervous okay patient pleased polite poor popular
pregnant proud quiet ready relaxed relieved responsible rich rude sad safe satisfied scared selfish shocked shy sick
single sleepy smart sorry strong stubborn successful sure surprised tall thirsty tired unhappy upset weak wealthy
well wise worried wrong
""")

NATIONALITIES = entries("""
African American Arab Australian Brazilian British Canadian Chinese Dutch Egyptian English European French German
Greek Indian Iranian Irish Israeli Italian Japanese Korean Mexican Norwegian Polish Portuguese Roman Russian
Scottish Spanish Swedish Swiss Thai Turkish Vietnamese
""")

LANGUAGES = entries("""
Arabic Chinese Danish Dutch English Finnish French German Greek Hebrew Hindi Italian Japanese Korean Latin Norwegian
Polish Portuguese Russian Spanish Swedish Turkish Vietnamese
""")

COLORS = entries("black blue brown gold gray green orange pink purple red silver white yellow dark_blue light_green")

DAYS = entries("Monday Tuesday Wednesday Thursday Friday Saturday Sunday")

MONTHS = entries("January February March April May June July August September October November December")

HOLIDAYS = entries("""
Christmas Easter New_Year's_Eve Thanksgiving Halloween Valentine's_Day the_weekend the_holidays Independence_Day
Mother's_Day spring summer autumn winter
""")

SPORTS = entries("""
baseball basketball badminton bowling boxing cards chess cricket cycling dancing diving fishing football golf
gymnastics hiking hockey ice_skating jogging karate rugby running sailing skiing soccer surfing swimming
table_tennis tennis volleyball wrestling yoga
""")

WEATHER_NOUNS = entries(
    "cloud fog frost heat ice lightning mist rain rainbow snow storm sunshine thunder wind hail flood breeze"
)

WEATHER_WORDS = entries("""
cloudy cold cool dry foggy freezing hot humid icy mild nice rainy snowy stormy sunny terrible warm wet windy bright
""")

HEALTH = entries("""
a_cold a_cough a_fever a_headache a_sore_throat a_stomach_ache a_broken_arm a_heart_attack allergies asthma
back_pain cancer diabetes the_flu high_blood_pressure an_infection an_injury a_toothache a_broken_leg
trouble_sleeping a_virus
""")

MEDICINES = entries("""
aspirin cough_syrup medicine pain_killers pills sleeping_pills tablets vitamins bandages antibiotics eye_drops drugs
""")

UNITS_OF_LENGTH = entries("inches feet yards miles meters kilometers centimeters blocks steps")
UNITS_OF_WEIGHT = entries("pounds ounces grams kilograms tons")
UNITS_OF_VOLUME = entries("cups pints gallons liters tablespoons teaspoons bottles glasses spoons")
UNITS_OF_TIME = entries("seconds minutes hours days weeks months years decades centuries")
UNITS_OF_DATA = entries("megabytes gigabytes pixels bytes bits points percent volts watts degrees")

MANNERS = entries("""
again alone already anyway automatically badly barely beautifully briefly carefully clearly closely completely
correctly deeply differently directly easily effectively entirely exactly finally gently gradually happily hard
heavily immediately loudly naturally nicely officially on_purpose once openly partly patiently perfectly personally
politely properly quickly quietly rapidly regularly safely secretly separately seriously sharply silently slowly
softly strongly suddenly together twice as_usual by_accident by_hand by_myself for_fun for_free in_a_hurry in_person
instead just_in_case just_fine right_away right_now so_far too well without_help at_once at_last all_the_time
all_day_long all_night this_way in_secret straight_away as_well once_more and_so_on even_so after_all
""")

FREQUENCIES = entries("""
always usually often sometimes rarely never hardly_ever almost_never generally normally frequently occasionally
constantly still also just really actually probably definitely certainly only even almost nearly simply
""")

DEGREES = entries("""
very really so quite rather too pretty fairly extremely absolutely a_little a_bit incredibly totally completely
highly terribly truly particularly especially slightly somewhat perfectly kind_of just much_too
""")

OPENERS = entries("""
actually apparently basically frankly fortunately honestly however hopefully luckily meanwhile moreover maybe
nevertheless normally obviously of_course perhaps personally probably seriously sometimes suddenly surprisingly
therefore today unfortunately usually well anyway besides eventually for_example for_instance in_fact in_general
in_my_opinion in_other_words in_the_end on_the_other_hand first second third finally then now so still after_all
after_that as_a_result at_first at_least at_the_moment by_the_way these_days once_again to_be_honest
as_far_as_I_know believe_it_or_not oddly_enough furthermore otherwise clearly certainly indeed instead above_all
in_addition in_theory on_average
""")

INTERJECTIONS = entries("""
ah alright bye cheers dear_me excuse_me fine goodness great hello hey hi hmm listen look my_god gosh no nope oh
oh_dear oh_no oh_well okay ouch please really right see sorry sure thanks um uh well what whoa wow yeah yep yes
you_know I_mean uh_huh come_on go_ahead never_mind all_right of_course no_way hang_on hold_on
""")

# Verbs by what may follow them. Those that are not regular are in IRREGULAR.
VERBS = {
    "thing": entries("""
borrow break bring build buy carry catch change check choose clean collect cover cut damage design display draw drop
examine exchange find fix get give_away grab hang_up hide hit hold identify inspect keep kick knock_over
leave_behind lend lift lock look_for lose make move need notice offer open order own pack paint pick_up place
point_at polish produce protect pull push put_away put_down remove rent repair replace return rub see sell send_back
set_up shake share shut smash steal store strike take throw_away tie touch try turn_over unlock use want wash wear
win wrap measure hand_over seize pass throw burn test import export ship
"""),
    "document": entries("""
approve bring_up check circulate copy correct deliver discuss edit email explain file finish forward illustrate mail
mention post prepare present print publish put_together quote read read_out record revise review rewrite scan send
share sign study submit summarize tear_up translate type understand update write write_down cite sign_off release
reject accept draft complete compose
"""),
    "food": entries("""
eat cook bring buy serve prepare order enjoy share love like hate smell taste try make pick_up chop cut_up finish
avoid recommend sell pay_for mix freeze fry heat_up
"""),
    "drink": entries("drink order pour spill have enjoy buy bring make share"),
    "person": entries("""
accuse admire advise answer appoint arrest ask assist avoid believe blame bother call call_back catch_up_with chase
comfort contact convince cover_for date defend disappoint disturb drive_home elect embarrass encourage fight fire
follow forgive frighten get_along_with greet guide hear hate help hire hug ignore impress inform inspire interrupt
interview introduce invite join judge kiss know laugh_at lead leave like listen_to look_after look_for love marry
meet miss notice observe offend pay persuade phone pick_up praise promote protect push question recognize recommend
refuse remember remind replace rescue respect save see serve shock shout_at smile_at speak_to spot stop support
surprise take_care_of talk_to teach tease tell thank train trust understand visit wait_for wake_up walk_with warn
watch welcome work_for worry_about write_to stare_at wave_at deal_with agree_with argue_with disagree_with represent
"""),
    "place": entries("""
visit leave reach cross explore enter go_to drive_to walk_to travel_to return_to fly_to move_to live_near stay_near
arrive_at get_to come_back_from run_to head_for ride_to sail_to stop_at pass_by find search wander_around march_to
rush_to live_in
"""),
    "device": entries("""
adjust charge check connect disconnect fix install plug_in power_down reboot repair replace reset restart start stop
switch_off switch_on test turn_down turn_off turn_on turn_up unplug use upgrade control operate shut_down
"""),
    "software": entries("""
activate add attach back_up cancel clear click close copy create cut delete disable download duplicate edit enable
enter export find go_back_to hide import insert load minimize move open paste pin print reload remove rename replace
reset resize restore save scroll_to search select send share show sort store sync update upload verify block access
modify switch_to define generate link view zoom_in_on
"""),
    "abstract": entries("""
accept achieve analyze appreciate arrange assess assume calculate cause celebrate change compare complain_about
concentrate_on confirm consider create decide_on define demand demonstrate deny depend_on describe deserve determine
develop discover discuss emphasize ensure establish estimate evaluate expect experience explain express face
figure_out finish focus_on forget gain get handle have ignore imagine improve include increase indicate influence
introduce investigate involve justify know lack lose make mention miss need obtain organize overcome point_out
predict prefer prevent prove provide raise realize recall recognize recommend reduce regard reject remember repeat
represent resolve respond_to reveal risk see solve start suggest support talk_about tell think_about understand want
work_on worry_about hear_about dream_about admit announce argue_about balance benefit_from confuse continue
contribute_to encourage extend identify impose maintain manage mark mean observe oppose perform pursue reflect
relate_to settle state suffer_from undertake clarify propose limit
"""),
    "topic": entries("""
study teach learn_about read_about talk_about write_about think_about argue_about know_about understand care_about
complain_about dream_about hear_about believe_in worry_about forget_about ask_about focus_on invest_in comment_on
discuss support joke_about
"""),
    "animal": entries("feed see hear catch chase own keep ride photograph pet love rescue sell raise draw"),
    "body": entries("hurt wash move rub scratch cover touch injure break twist shake burn"),
    "sport": entries("play watch enjoy practice like love hate teach learn prefer"),
    "alone": entries("""
agree apologize appear argue arrive begin blink breathe calm_down change cheer climb come come_back cough count cry
dance deal die disagree disappear dream drive eat emerge escape exercise exist fail faint fall fall_asleep fall_down
fight fly freeze get_dressed get_lost get_married get_up give_up go go_away go_out go_shopping go_to_bed go_to_sleep
go_to_work grow_up happen hesitate hurry improve jump kneel knock land laugh lean learn leave lie_down listen live
look_around lose matter move nod obey panic pass pause pay pray quit react recover relax rest retire return rise
roll_over run scream settle_down shout show_up shower sing sink sit sit_down sleep slip smile smoke sneeze speak
stand stand_up stare stay stay_home study succeed suffer surrender survive sweat swim talk think travel try vanish
vote wait wake_up walk wander whisper whistle win wonder work worry yell shine struggle swear
"""),
    "that": entries("""
think know believe hope guess suppose say hear feel see notice realize understand remember forget find_out suspect
imagine assume argue admit claim doubt promise expect pretend wish figure swear agree insist mention suggest fear
prove conclude discover explain announce
"""),
    "infinitive": entries("""
want need try like love hope plan decide expect promise forget remember agree refuse learn manage offer prefer
pretend start begin continue hesitate choose hate intend wish attempt fail tend struggle prepare arrange deserve
"""),
    "gerund": entries("""
enjoy keep stop start finish avoid consider hate love like mind miss practice quit suggest imagine risk give_up
keep_on put_off think_about talk_about insist_on look_forward_to feel_like
"""),
}

# Verbs that are not said of what is going on: "I know", not "I am knowing".
STATES = frozenset(
    entries("""
believe care_about deserve doubt guess hate have hear intend know know_about like love
matter mean need own prefer realize recall recognize regard remember see seem suppose suspect trust understand want
wish lack agree believe_in imagine depend_on exist assume forget find notice
""")
)

# base, past, participle
IRREGULAR = {
    line.split()[0]: (line.split()[1], line.split()[2])
    for line in """
    be was been
    beat beat beaten
    become became become
    begin began begun
    bite bit bitten
    blow blew blown
    break broke broken
    bring brought brought
    build built built
    buy bought bought
    catch caught caught
    choose chose chosen
    come came come
    cost cost cost
    cut cut cut
    deal dealt dealt
    do did done
    draw drew drawn
    drink drank drunk
    drive drove driven
    eat ate eaten
    fall fell fallen
    feed fed fed
    feel felt felt
    fight fought fought
    find found found
    fly flew flown
    forget forgot forgotten
    forgive forgave forgiven
    freeze froze frozen
    get got gotten
    give gave given
    go went gone
    grow grew grown
    hang hung hung
    have had had
    hear heard heard
    hide hid hidden
    hit hit hit
    hold held held
    hurt hurt hurt
    keep kept kept
    kneel knelt knelt
    know knew known
    lead led led
    leave left left
    lend lent lent
    let let let
    lie lay lain
    light lit lit
    lose lost lost
    make made made
    mean meant meant
    meet met met
    overcome overcame overcome
    pay paid paid
    put put put
    quit quit quit
    read read read
    rewrite rewrote rewritten
    ride rode ridden
    ring rang rung
    rise rose risen
    run ran run
    say said said
    see saw seen
    seek sought sought
    sell sold sold
    send sent sent
    set set set
    shake shook shaken
    shine shone shone
    show showed shown
    shut shut shut
    sing sang sung
    sink sank sunk
    sit sat sat
    sleep slept slept
    slide slid slid
    speak spoke spoken
    spend spent spent
    spread spread spread
    stand stood stood
    steal stole stolen
    stick stuck stuck
    strike struck struck
    swear swore sworn
    swim swam swum
    take took taken
    teach taught taught
    tear tore torn
    tell told told
    think thought thought
    throw threw thrown
    understand understood understood
    undertake undertook undertaken
    wake woke woken
    wear wore worn
    win won won
    write wrote written
    """.strip().splitlines()
}

# Verbs of more than one syllable that double the last letter, and one that the rule for short ones misses.
DOUBLED = frozenset(entries("admit begin forget occur permit prefer refer regret submit quit upset control"))

IRREGULAR_PLURALS = {
    "businessman": "businessmen", "chairman": "chairmen", "child": "children",
    "deer": "deer", "fish": "fish", "fisherman": "fishermen", "foot": "feet",
    "furniture": "pieces of furniture", "gentleman": "gentlemen", "goose": "geese", "knife": "knives", "man": "men",
    "mouse": "mice", "pair of glasses": "pairs of glasses", "pair of shoes": "pairs of shoes", "person": "people",
    "salesman": "salesmen", "series": "series", "sheep": "sheep", "shelf": "shelves", "spokesman": "spokesmen",
    "thief": "thieves", "tooth": "teeth", "wife": "wives", "wolf": "wolves", "woman": "women", "proof": "proofs",
    "roof": "roofs", "chief": "chiefs", "piece of advice": "pieces of advice", "bit of luck": "bits of luck",
    "wood": "pieces of wood", "metal": "pieces of metal", "blood pressure": "blood pressures", "hero": "heroes",
}  # fmt: skip

# Nouns that end in s and are not plural.
SINGULAR_IN_S = frozenset(
    entries("glass lens process progress basis bus boss class business mattress princess actress waitress campus")
)

# Nouns that have no plural and take no "a".
UNCOUNTED = frozenset(
    entries("""
wood metal furniture information progress importance existence stuff trouble luck logic lack work permission
emphasis understanding silence hair blood_pressure series memory security data software text code internet
voice_mail success reality rest
""")
)

# Spoken alone, in lists and in questions about words: those that no other pattern says.
OTHER_WORDS = entries("""
season become services sex county longer movie received official match base allow particular additional named direct
master ended multiple literally laws equipment drug fat remain acting seemed animal apply individuals bet cast
require background aid concerned treat sites bay blog democratic issued mountain shoot sport clothes joint policies
spending arts currently spent songs cities animals becomes Americans appeared became made said told left held built
kept led lost sent paid driven fallen grown hidden chosen Jesus Facebook Google etcetera bottom investigation advice
albeit aside associated becoming being beside beneath biggest bigger cannot capacity cash cent centimeter centre
christ colour core dude easier eh evil ex extent fit forced former fully gay greater higher holy index inc itself
jesus larger lord lower mass mid mission mostly movies namely naughty negative ones overall pal percent per pop
possibly pre previously pro re remains secondary self shooting shot site smaller someone's somewhat spend theirs
thereby thus till towards treated twitter usa versus via vice whereas whereby wherever whichever whoever whom whose
yours hers ours mine twice thrice someplace somewhere anywhere nowhere elsewhere everywhere evermore forever
afterwards beforehand therein ahead apart away backward forward sideways ain't gonna gotta wanna kinda dunno y'all
sort bunch dozen pair hundred thousands millions billion trillion dozens heaven hell devil angel ghost dead died
dying birth born alive killed killing murder wound wounded aged amid amongst circa considering during except
excluding following given hence including like minus near onto opposite outside past plus regardless round save
since than though throughout unlike upon whilst within worth grade football weekend midnight holiday anniversary
ceremony vacation homework suspicious loyal cruel fancy bald pregnant invisible sheriff colonel cowboy mayor monk
nun pirate witch wizard dragon monster vampire zombie alien hundredth thousandth last-minute well-known part-time
full-time up-to-date so-called old-fashioned Jewish Christian Muslim Catholic
""")

# What a sentence of its own can be.
PATTERNS = {
    "talk": (
        "Stop being {feeling}.",
        "They have the same {noun:thing}.",
        "I need to tell you something.",
        "Is something wrong with {person_object}?",
        "What are you doing {place}?",
        "I'm done with {the:thing}.",
        "Everything is {good}.",
        "I didn't do anything.",
        "Have you done your homework?",
        "I'm gonna {vp}.",
        "You gotta {vp}.",
        "Do you wanna {vp}?",
        "Here's {the:document}.",
        "There you go.",
        "Here we are.",
        "I cannot {vp}.",
        "It's just the same as {thing}.",
        "Nobody knows anything about {topic}.",
        "That one is mine, and this one is yours.",
        "Theirs is {color}, ours is {color}.",
        "Whose turn is it?",
        "To whom did {first} {vp}?",
        "As long as {clause}, we can {vp}.",
        "I don't care whether {clause}.",
        "She is the one who {vp:past}.",
        "That's the {noun:person} who {vp:past}.",
        "This is the {noun:venue} where {past}.",
        "Do whatever you want.",
        "Everything will be all right.",
        "Nothing happened {past_time}.",
        "Come on, do it again.",
        "We're all in the same boat.",
        "I've got {thing}.",
        "He's got {illness}.",
        "Have you got {thing}?",
        "You've got to {vp}.",
        "It's up to you.",
        "I used to {vp}.",
        "He made me {vp}.",
        "They let us {vp}.",
        "I want you to {vp}.",
        "Tell me what you {vp:past}.",
        "Which is {good}, {topic} or {topic}?",
        "It depends on whether {clause}.",
        "Give it to {person_object}.",
        "Put it {place}.",
        "What I mean is that {clause}.",
        "If I were you, I would {vp}.",
        "I wish I could {vp}.",
        "You'd think so, wouldn't you?",
        "I should have {vp:en}.",
        "You could have {vp:en}.",
        "They must have {vp:en}.",
        "It would have been {good}.",
        "It has been {duration} since {past}.",
        "That's what {first} said.",
        "How many times have you {vp:en}?",
        "I'm just kidding.",
        "Are you kidding me?",
        "Same here.",
        "Either way is fine.",
        "Both of them are {good}.",
        "None of them {vp:past}.",
        "One of us has to {vp}.",
        "Some of it is mine.",
        "Hurry up, {first}, we're late.",
        "Be careful with {thing}.",
        "Don't {vp}.",
        "Please don't {vp}.",
        "Never {vp} {place}.",
        "Always {vp} before {clock}.",
        "Hello, {first}. How are you today?",
        "Hi, this is {first} {last}.",
        "Good morning, everyone.",
        "Good {part_of_day}, {first}.",
        "Nice to meet you, {title} {last}.",
        "My name is {first} {last}.",
        "Thank you very much.",
        "Thanks for {vp:ing}.",
        "You're welcome.",
        "See you {future_time}.",
        "Have a {good} {part_of_day}.",
        "How was your {part_of_day}?",
        "How is {relative}?",
        "What's up?",
        "What's new with {person_object}?",
        "Take care, {first}.",
        "I'm sorry about {the:abstract}.",
        "Sorry, what did you say?",
        "Could you say that again, please?",
        "Excuse me, is this seat taken?",
        "That sounds {good}.",
        "That's {degree} {good}.",
        "It's not that {good}.",
        "What a {good} {noun:abstract}!",
        "What a {good} {noun:thing}!",
        "How {good}!",
        "I don't think so.",
        "I hope so.",
        "I have no idea.",
        "I couldn't agree more.",
        "It doesn't matter.",
        "Don't worry about {the:abstract}.",
        "Let me think about it.",
        "Let me {vp}.",
        "Let's {vp}.",
        "Let's not {vp}.",
        "Let {person_object} {vp}.",
        "You should {vp}.",
        "Why don't we {vp}?",
        "How about {vp:ing}?",
        "What about {thing}?",
        "Do you mind if I {vp}?",
        "Would you like to {vp}?",
        "Would you like some {food} or some {drink}?",
        "I'd rather {vp}.",
        "I'd like to {vp}.",
        "You'd better {vp}.",
        "I can't wait to {vp}.",
        "It's time to {vp}.",
        "There's no need to {vp}.",
        "{interjection}.",
        "{interjection}, {clause}.",
        "{interjection}! {clause}.",
        "{interjection}, {first}.",
        "{opener}, {clause}.",
        "Happy birthday, {first}!",
        "Congratulations on {the:abstract}!",
        "Good luck with {the:abstract}!",
        "Long time no see.",
        "Who is it?",
        "It's me, {first}.",
        "Is anybody home?",
        "Come in and sit down.",
        "Merry Christmas!",
        "Happy New Year!",
        "I am {cardinal} years old.",
        "How old are you?",
        "I was born in {year}.",
        "I was born on {date}.",
        "I grew up in {place_name}.",
        "Where are you from?",
        "I'm from {place_name}.",
        "I live at {house_number} {street}.",
        "Do you speak {language}?",
        "I speak a little {language}.",
        "Not {time_word}.",
        "Maybe {future_time}.",
        "See you at {clock}.",
        "So do I.",
        "Neither do I.",
        "Me too.",
        "Neither one.",
        "Whatever you like.",
        "Whenever you want.",
        "{first}, {question}",
        "{question}",
        "You look {feeling}.",
        "Are you {feeling}?",
        "You seem {degree} {feeling}.",
        "Ladies and gentlemen, {clause}.",
        "Dear {title} {last}, thank you for {the:document}.",
        "I love you, {first}.",
        "Who cares?",
        "Says who?",
        "Mind your own business.",
        "That's none of my business.",
        "Give me a break.",
        "He is the {superlative} {noun:person} in {place_name}.",
        "She is the {superlative} {noun:person} I have ever met.",
    ),
    "computer": (
        "Computer, {vp:software}.",
        "Please {vp:software}.",
        "Can you {vp:software}?",
        "Could you {vp:device}, please?",
        "{vp:device}.",
        "{vp:software}.",
        "Set a timer for {duration}.",
        "Set an alarm for {clock}.",
        "Wake me up at {clock}.",
        "Remind me to {vp} {future_time}.",
        "Remind me to {vp} at {clock}.",
        "Add {food} and {drink} to my shopping list.",
        "Add {noun:thing} to the list.",
        "Play some {nationality} music.",
        "Play the next song.",
        "Pause the {noun:software}.",
        "Turn the volume {up_down}.",
        "Turn the volume up to {cardinal} percent.",
        "What time is it?",
        "What time is it in {city}?",
        "What's the date today?",
        "What day is it?",
        "What's the weather like in {city}?",
        "Will it rain {future_time}?",
        "Do I need an umbrella {future_time}?",
        "How far is it from {city} to {city}?",
        "How do I get to {city}?",
        "Take me to {street}.",
        "Find the nearest {noun:venue}.",
        "Call {first} {last}.",
        "Call {relative}.",
        "Send a message to {first}.",
        "Text {first} that {clause}.",
        "Tell {first} I'll be there in {duration}.",
        "Read my messages.",
        "Open the {noun:software}.",
        "Close the {noun:software}.",
        "Save the {noun:software} as {quoted}.",
        "New line.",
        "New paragraph.",
        "Delete the last {noun:software}.",
        "Select all.",
        "Undo that.",
        "Stop listening.",
        "Start recording.",
        "Stop recording.",
        "Show me {plural:software} from {past_time}.",
        "Search for {topic}.",
        "Search for {topic} in {region}.",
        "Look up {topic}.",
        "How do you spell {word}?",
        "What does {word} mean?",
        "How do you say {word} in {language}?",
        "The word {word} has {small} letters.",
        "Translate this into {language}.",
        "Switch to {language}.",
        "Go back to {the:software}.",
        "Scroll down.",
        "Page up.",
        "Press {key} to continue.",
        "Press the {color} button.",
        "Press {key} and hold it for {duration}.",
        "Type {letters}.",
        "The password is {letters} {digits}.",
        "My code is {digits}.",
        "Enter {digits} and press {key}.",
        "What is {cardinal} {operator} {cardinal}?",
        "{cardinal} {operator} {cardinal} equals {cardinal}.",
        "The battery is at {cardinal} percent.",
        "There are {cardinal} new messages.",
        "You have {cardinal} unread emails.",
        "Your download will finish in {duration}.",
        "The file is {cardinal} {unit_of_data} long.",
        "I forgot my password again.",
        "{the:device} isn't working.",
        "{the:device} has stopped working.",
        "{the:software} won't open.",
        "My screen is frozen.",
        "Is the microphone on?",
        "Can you hear me now?",
        "Testing, one, two, three.",
        "Turn {the:device} off when {clause}.",
        "Close {the:software} and open {the:software}.",
        "Click on {the:software}.",
        "Try turning it off and on again.",
        "Which version of {the:software} do you have?",
        "Send it to {first} at {company} dot com.",
        "The website is {company} dot org.",
    ),
    "meeting": (
        "Let's get started with {the:abstract}.",
        "Can everybody see my screen?",
        "You're on mute, {first}.",
        "I think {first} is on mute.",
        "Sorry, I was on mute.",
        "The first item is {topic}.",
        "The {ordinal} item on the agenda is {the:abstract}.",
        "Any questions about {the:abstract}?",
        "Does anyone have a question?",
        "Let's move on to {the:abstract}.",
        "We need to talk about {topic}.",
        "Could you share {the:document} with {the:group}?",
        "{first} will send {the:document} by {day}.",
        "The deadline is {date}.",
        "The meeting starts at {clock}.",
        "The meeting has been moved to {day} at {clock}.",
        "The meeting was cancelled because {clause}.",
        "Can we meet on {day} at {clock}?",
        "Let's take a break for {duration}.",
        "We have {duration} left.",
        "We're running out of time.",
        "I'll follow up with {person_object} {future_time}.",
        "What's the status of {the:abstract}?",
        "Who is going to {vp}?",
        "Who wants to {vp}?",
        "Sales went up by {cardinal} percent {past_time}.",
        "Profits fell {decimal} percent in {month}.",
        "The budget is {price}.",
        "We hired {small} {plural:person} {past_time}.",
        "Our {noun:group} has {cardinal} employees.",
        "Thanks for joining, everyone.",
        "That's all for today.",
        "As {first} said, {clause}.",
        "According to {the:document}, {clause}.",
        "I agree with {first}.",
        "I disagree with {person_object} about {topic}.",
        "Good point, {first}.",
        "In the {ordinal} quarter, {clause}.",
        "On page {cardinal}, {clause}.",
        "On the one hand, {clause}.",
        "The problem is that {clause}.",
        "The question is whether {clause}.",
        "The important thing is to {vp}.",
        "My point is that {clause}.",
        "It turns out that {clause}.",
        "It looks like {clause}.",
        "It seems that {clause}.",
        "The reason is that {clause}.",
        "The truth is that {clause}.",
        "The fact is that {clause}.",
        "All those in favor, say yes.",
        "The vote was {cardinal} to {cardinal}.",
        "The committee voted against {the:abstract}.",
        "He was elected president in {year}.",
        "She has worked for {company} since {year}.",
        "{first} {last} is the {noun:person} of {company}.",
        "I work as a {noun:person} in {city}.",
        "I have a job interview {future_time}.",
    ),
    "caption": (
        "{the:group} lost its {noun:abstract}.",
        "Due to {the:abstract}, {past}.",
        "It is based on {the:document} by {first} {last}.",
        "It was found by the {plural:person} of {city}.",
        "The {noun:thing} was made in {region}.",
        "The {noun:venue} was built in {year}.",
        "{the:group} was founded in {year}.",
        "The word itself comes from {language}.",
        "They walked towards {landmark}.",
        "It costs {price} per person.",
        "{the:document} was written by {first} {last}.",
        "{cardinal} {plural:person} were killed in {the:abstract} of {year}.",
        "It became one of the {superlative} {plural:thing} in {region}.",
        "It is located in the {compass} of {region}.",
        "It was sent via {city}.",
        "The capital of {region} has {cardinal_big} inhabitants.",
        "No further {plural:abstract} were reported.",
        "The rest of {the:abstract} required {topic}.",
        "Prior to {year}, {past}.",
        "Rather than {vp}, {past}.",
        "Apart from {first}, {past}.",
        "{first} {last}, who {vp:past}, died in {year}.",
        "{the:group} {vp:past}.",
        "In {year}, {past}.",
        "On {date}, {past}.",
        "It was {year}, and {past}.",
        "It is {clock} in {city}.",
        "Here in {place_name}, {clause}.",
        "{title} {last} said that {clause}.",
        "{quoted_clause}",
        "{said}",
        "The {noun:group} of {region} {vp:past}.",
        "{first} {last} was a {nationality} {noun:person}.",
        "He was born in {city} in {year} and died in {year}.",
        "{city} is the capital of {region}.",
        "{landmark} is near {city}.",
        "{landmark} is {cardinal_big} {unit_of_length} long.",
        "About {cardinal_big} people live in {city}.",
        "More than {cardinal_big} people {vp:past}.",
        "Between {year} and {year}, {past}.",
        "During the {ordinal} century, {past}.",
        "At the age of {cardinal}, {past}.",
        "Chapter {small}. {topic}.",
        "Part {small}.",
        "Welcome back to {the:abstract}.",
        "Welcome to {place_name}.",
        "You're listening to {topic} on {company} radio.",
        "Today we will talk about {topic}.",
        "Today's topic is {topic}.",
        "In this video, {first} will {vp}.",
        "And now the news from {place_name}.",
        "The price of {food} has gone up by {cardinal} percent.",
        "The {nationality} president met the {nationality} minister in {city}.",
        "Temperatures will reach {cardinal} degrees in {region}.",
        "There is {thing} in {the:room}.",
        "There was {abstract} in {city} {past_time}.",
        "There were {cardinal} {plural:person} {place}.",
        "There are many kinds of {topic}.",
        "There isn't any {food} left.",
        "Some people {vp}, while others {vp}.",
        "The more you {vp:alone}, the more you {vp:alone}.",
        "Both {first} and {first} {vp:past}.",
        "Neither {first} nor {first} {vp:past}.",
        "Either {clause}, or {clause}.",
        "The {noun:abstract} of {topic} is {degree} {good}.",
        "{topic} and {topic} are related.",
        "The history of {topic} began in {year}.",
        "Scientists have found that {clause}.",
        "Experts say {clause}.",
        "{topic} is as {good} as {topic}.",
        "The {superlative} {noun:animal} in the world lives in {region}.",
        "{the:abstract} between {region} and {region} lasted {duration}.",
        "Once upon a time, {past}.",
        "To {vp}, you must {vp}.",
        "By {vp:ing}, {clause}.",
        "Instead of {vp:ing}, {clause}.",
        "Before {vp:ing}, {past}.",
        "After {vp:ing}, {past}.",
        "Without {topic}, {clause}.",
        "Despite {the:abstract}, {past}.",
        "Because of {the:abstract}, {past}.",
        "Thanks to {person_object}, {past}.",
        "Except for {first}, {past}.",
        "Among {the:group}, {past}.",
        "Toward the end of {the:abstract}, {past}.",
        "Throughout {the:abstract}, {past}.",
        "Beyond {landmark}, {clause}.",
        "Above {the:venue}, {clause}.",
        "Within {duration}, {past}.",
        "Since {year}, {clause}.",
        "Until {year}, {past}.",
        "Unlike {first}, {clause}.",
        "Regarding {topic}, {clause}.",
    ),
    "weather": (
        "It's {weather} today.",
        "It was {weather} {past_time}.",
        "It's going to be {weather} {future_time}.",
        "It is {degree} {weather} in {city}.",
        "It rained {past_time}.",
        "It might snow {future_time}.",
        "There is a chance of {weather_noun} {future_time}.",
        "The {weather_noun} will clear by {clock}.",
        "The temperature is {cardinal} degrees.",
        "Today's high will be {cardinal} and the low {cardinal}.",
        "The sun rises at {clock}.",
        "I hate the {weather_noun}.",
        "What a {weather} day!",
        "The wind is blowing from the {compass}.",
        "The sky is {color}.",
        "Is it {weather} outside?",
        "It hasn't rained for {duration}.",
        "The sun is shining and the birds are singing.",
        "The storm hit the {compass} coast of {region} {past_time}.",
        "There were {cardinal} inches of snow in {month}.",
        "Stars shine at night.",
    ),
    "food": (
        "I'd like {food} and {drink}, please.",
        "Can I have some more {food}?",
        "I had {food} for breakfast.",
        "What's for dinner?",
        "Do you want {food} or {food}?",
        "The {food_word} tastes {good}.",
        "I don't like {food}.",
        "Pass me the {food}, please.",
        "Add {small} {unit_of_volume} of {food}.",
        "Mix the {food} with the {food}.",
        "Bake it for {duration}.",
        "Cut the {food} into small pieces.",
        "We need {food}, {food}, and {food}.",
        "How much is the {food}?",
        "That'll be {price}, please.",
        "A table for {small}, please.",
        "Can we have the check, please?",
        "I'm allergic to {food}.",
        "{first} is cooking {food} for supper.",
        "I'll have a cup of {drink}.",
        "Two {unit_of_volume} of {drink}, please.",
        "I'm {feeling}, let's eat.",
        "Do you take milk and sugar in your coffee?",
        "The restaurant on {street} serves {nationality} food.",
        "Have you ever tried {nationality} food?",
        "Buy {small} {unit_of_weight} of {food}.",
        "Boil the water and stir in the {food}.",
        "My favorite food is {food}.",
    ),
    "travel": (
        "The train to {city} leaves at {clock}.",
        "Your flight to {city} departs from gate {gate}.",
        "Flight {digits} to {city} has been delayed.",
        "Turn {left_right} onto {street}.",
        "Turn {left_right} at the {noun:venue}.",
        "Go straight for {small} {unit_of_length}.",
        "Keep {left_right} and take the {ordinal} exit.",
        "The {noun:venue} is on the {left_right}.",
        "How do I get to {the:venue}?",
        "How long does it take to get to {city}?",
        "It takes {duration} by {transport}.",
        "Have you ever been to {place_name}?",
        "We went to {place_name} by {transport}.",
        "I've never been to {place_name}.",
        "We are flying from {city} to {city} {future_time}.",
        "I'd like a ticket to {city}.",
        "A return ticket costs {price}.",
        "A room for {small} nights, please.",
        "Room {digits} is on the {ordinal} floor.",
        "We stayed in {city} for {duration}.",
        "{city} is {cardinal} {unit_of_length} from {city}.",
        "My suitcase weighs {cardinal} {unit_of_weight}.",
        "Where is {the:venue}?",
        "Excuse me, where is the nearest {noun:venue}?",
        "The bus stops in front of {the:venue}.",
        "{place_name} is {degree} {good} in {season}.",
        "Drive {compass} on highway {cardinal}.",
        "The speed limit is {cardinal} miles per hour.",
        "We crossed {landmark} on {day}.",
        "I've lost my passport.",
        "There's a lot of traffic on {street}.",
        "The next stop is {street}.",
        "Please stand clear of the doors.",
        "Mind the step.",
        "We'll be landing in {city} in {duration}.",
        "We walked across the field and through the woods.",
        "The boat sailed along {landmark}.",
    ),
    "sport": (
        "{first} plays {sport} every {day}.",
        "Do you like {sport}?",
        "{city} beat {city} {small} to {small}.",
        "Our team won by {small} points.",
        "The score is {small} to {small}.",
        "{first} {last} scored {small} goals.",
        "The game starts at {clock}.",
        "Who won the game {past_time}?",
        "They lost the final against {region}.",
        "{last} ran {cardinal} {unit_of_length} in {duration}.",
        "I'm not very good at {sport}.",
        "The coach wants {person_object} to {vp}.",
        "She won a gold medal in {year}.",
        "{sport} is {degree} {good}.",
        "He has played {sport} since {year}.",
        "The {color} team is ahead.",
        "{first} kicked the ball over the fence.",
        "What a {good} game!",
    ),
    "health": (
        "I have {illness}.",
        "{first} has {illness}.",
        "My {noun:body} hurts.",
        "Take {small} {medicine} every {small} hours.",
        "You should see a doctor about your {noun:body}.",
        "I've had {illness} for {duration}.",
        "I don't feel well.",
        "{first} is in the hospital with {illness}.",
        "The doctor told {person_object} to {vp}.",
        "How is your {noun:body}?",
        "She broke her {noun:body} {past_time}.",
        "My blood pressure is {cardinal} over {cardinal}.",
        "Did you sleep well?",
        "I need {medicine} for my {noun:body}.",
        "Breathe in slowly and hold your breath.",
        "Your appointment with Dr. {last} is on {day} at {clock}.",
        "He is {small} feet tall and weighs {cardinal} {unit_of_weight}.",
        "Somebody call an ambulance!",
        "The patient in room {cardinal} is {feeling}.",
        "Is {first} any better today?",
    ),
    "numbers": (
        "My phone number is {phone}.",
        "Call {phone}.",
        "You can reach me at {phone}.",
        "The number is {digits}.",
        "{cardinal}, {cardinal}, {cardinal}.",
        "{small}, {small}, {small}, {small}, {small}.",
        "It costs {price}.",
        "I paid {price} for {thing}.",
        "It's {clock}.",
        "It's {clock} already.",
        "Today is {day}, {date}.",
        "It happened on {date}, {year}.",
        "My birthday is on {date}.",
        "The year was {year}.",
        "Open from {clock} to {clock}.",
        "About {percent} of {plural:person} agree.",
        "{percent} of the votes were counted.",
        "The box is {decimal} {unit_of_length} wide.",
        "It weighs {decimal} {unit_of_weight}.",
        "Pi is about three point one four.",
        "{fraction} of {the:group} {vp:past}.",
        "The population is {cardinal_big}.",
        "Page {cardinal}, line {cardinal}.",
        "Version {small} point {small}.",
        "Number {cardinal}, {first} {last}.",
        "First, second, third, fourth, fifth.",
        "{ordinal} place goes to {first}.",
        "It was the {ordinal} time that {past}.",
        "Order number {digits}.",
        "Your total is {price}.",
        "The address is {house_number} {street}, {city}.",
        "{cardinal} times out of {cardinal_big}.",
        "The temperature fell to minus {cardinal}.",
        "I counted {cardinal} {plural:animal}.",
        "She has {small} {plural:relative}.",
        "I need {cardinal} {plural:thing}.",
        "Meet me at {clock} on {day}.",
        "Doors open at {clock}.",
        "It took {duration}.",
        "I'll be back in {duration}.",
        "{cardinal} plus {cardinal} makes {cardinal}.",
        "{letters}.",
        "{letters}, {letters}.",
        "The letter {letter} comes before {letter}.",
        "My last name is spelled {letters}.",
        "{month} {ordinal}, {year}.",
        "Chapter {cardinal}.",
        "Section {cardinal}, paragraph {small}.",
        "Nothing is worth {price}.",
        "{cardinal_big} dollars.",
        "Half past {hour}.",
        "A quarter to {hour}.",
    ),
    "list": (
        "{word}, {word}, {word}.",
        "{word} and {word}.",
        "{word}, {word}, {word}, and {word}.",
        "{first}, {first}, and {first}.",
        "{last}, {last}, and {last}.",
        "{city}, {city}, {region}, and {region}.",
        "{food}, {food}, {food}, and {drink}.",
        "{color}, {color}, or {color}?",
        "{noun:thing}, {noun:animal}, {noun:body}.",
        "{first} {last}, {city}, {region}.",
        "From {word} to {word}.",
        "Not {word}, but {word}.",
        "{day}, {day}, and {day}.",
        "{topic}, {topic}, and {topic}.",
        "{word}, {word}, {word}, {word}, {word}.",
        "Is it {word} or {word}?",
    ),
}

# What the slots of patterns stand for, beside the nouns and the functions of sentences.py.
SLOTS: dict[str, tuple[str, ...]] = {
    "first": FIRST_NAMES,
    "last": FAMILY_NAMES,
    "title": ("Mr.", "Mrs.", "Dr.", "Mr.", "Miss", "Professor", "Captain", "President", "Sir", "Ms."),
    "city": CITIES,
    "region": REGIONS,
    "landmark": LANDMARKS,
    "street": STREETS,
    "place_name": CITIES + REGIONS,
    "company": tuple(name.lower().capitalize() for name in FAMILY_NAMES[::7]) + COLORS[:8],
    "nationality": NATIONALITIES,
    "language": LANGUAGES,
    "color": COLORS,
    "day": DAYS,
    "month": MONTHS,
    "season": (*HOLIDAYS[-4:], *MONTHS),
    "good": GOOD_BAD,
    "feeling": FEELINGS,
    "degree": DEGREES,
    "weather": WEATHER_WORDS,
    "weather_noun": WEATHER_NOUNS,
    "food": FOODS,
    "food_word": FOODS,
    "drink": DRINKS,
    "food_object": (
        "{food}",
        "some {food}",
        "the {food}",
        "{food} and {food}",
        "more {food}",
        "too much {food}",
        "{food} with {food}",
        "{nationality} food",
    ),
    "drink_object": (
        "{drink}",
        "some {drink}",
        "the {drink}",
        "a glass of {drink}",
        "a cup of {drink}",
        "a bottle of {drink}",
    ),
    "topic": TOPICS,
    "sport": SPORTS,
    "illness": HEALTH,
    "medicine": MEDICINES,
    "interjection": INTERJECTIONS,
    "opener": OPENERS,
    "unit_of_length": UNITS_OF_LENGTH,
    "unit_of_weight": UNITS_OF_WEIGHT,
    "unit_of_volume": UNITS_OF_VOLUME,
    "unit_of_data": UNITS_OF_DATA,
    "up_down": ("up", "down"),
    "left_right": ("left", "right"),
    "compass": (
        "north",
        "south",
        "east",
        "west",
        "northern",
        "southern",
        "eastern",
        "western",
        "northwest",
        "southeast",
    ),
    "transport": (
        "train",
        "bus",
        "car",
        "plane",
        "boat",
        "bike",
        "taxi",
        "subway",
        "ship",
        "truck",
        "horse",
        "foot",
        "air",
    ),
    "part_of_day": ("morning", "afternoon", "evening", "night", "day", "weekend", "week"),
    "operator": ("plus", "minus", "times", "divided by"),
    "key": (
        "enter",
        "escape",
        "control",
        "shift",
        "the space bar",
        "delete",
        "any key",
        "the power button",
        "the left arrow",
        "star",
    ),
    "hour": ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"),
    "fraction": (
        "half",
        "a third",
        "two thirds",
        "a quarter",
        "three quarters",
        "a fifth",
        "most",
        "one in ten",
        "less than half",
    ),
    "superlative": (
        "best",
        "worst",
        "biggest",
        "smallest",
        "tallest",
        "oldest",
        "youngest",
        "fastest",
        "strongest",
        "nicest",
        "kindest",
        "richest",
        "smartest",
        "funniest",
        "greatest",
        "most important",
        "most famous",
        "least expensive",
        "largest",
        "longest",
        "highest",
        "lowest",
        "latest",
        "happiest",
        "closest",
        "most beautiful",
    ),
    "past_time": (
        "yesterday",
        "last night",
        "last week",
        "last year",
        "last {day}",
        "last month",
        "{duration} ago",
        "in {year}",
        "this morning",
        "the day before yesterday",
        "in {month}",
        "a long time ago",
        "on {date}",
        "that day",
        "two weeks ago",
        "earlier today",
        "at {clock}",
        "on {day}",
        "when I was young",
    ),
    "future_time": (
        "tomorrow",
        "tonight",
        "next week",
        "next {day}",
        "in {duration}",
        "soon",
        "on {day}",
        "at {clock}",
        "later",
        "tomorrow morning",
        "this afternoon",
        "this weekend",
        "next year",
        "in {month}",
        "on {date}",
        "by {clock}",
        "the day after tomorrow",
        "before {clock}",
        "someday",
        "this evening",
        "after {clock}",
    ),
    "time_word": ("now", "yet", "today", "tonight", "anymore", "ever", "yesterday", "again", "always", "at all"),
    "quoted": ('"{noun:abstract}"', "{first} {small}", "{noun:document} {small}", '"{topic}"'),
    "quoted_clause": (
        '"{clause}," said {first}.',
        '"{question}" {first} asked.',
        '{first} said, "{clause}."',
        '"{clause}," {relative} told {person_object}.',
    ),
    "said": (
        "{first} asked whether {clause}.",
        "{relative} wondered why {clause}.",
        "{first} asked {person_object} to {vp}.",
        "{title} {last} told {person_object} that {past}.",
    ),
    "destination": (
        "{the:venue}",
        "{the:venue}",
        "{city}",
        "{city}",
        "{region}",
        "{landmark}",
        "{street}",
        "the {noun:room}",
    ),
    "own_body": ("my {noun:body}", "your {noun:body}", "his {noun:body}", "her {noun:body}"),
    "place_phrase": (
        "in {city}",
        "in {region}",
        "at {the:venue}",
        "in the {noun:room}",
        "near {landmark}",
        "on {street}",
        "at home",
        "at work",
        "at school",
        "next to {the:thing}",
        "behind {the:thing}",
        "under {the:thing}",
        "across the street",
        "over there",
        "upstairs",
        "downstairs",
        "outside",
        "inside",
        "everywhere",
        "with {person_object}",
        "with {thing}",
        "from {place_name}",
        "around the corner",
        "in front of {the:venue}",
        "between {city} and {city}",
        "on top of {the:thing}",
        "along the river",
        "in the {color} {noun:thing}",
        "without {person_object}",
        "through {the:venue}",
        "beside {the:thing}",
        "for {person_object}",
        "against the wall",
        "abroad",
        "nearby",
        "on the {ordinal} floor",
        "to {person_object}",
        "below {the:thing}",
        "into {the:room}",
        "beneath {the:thing}",
        "on the other side of {street}",
        "by {the:thing}",
        "anywhere else",
    ),
    "predicate": (
        "{feeling}",
        "{degree} {feeling}",
        "a {noun:person}",
        "a {good} {noun:person}",
        "{feeling} about {topic}",
        "in {city}",
        "{place_phrase}",
        "from {place_name}",
        "older than {person_object}",
        "{feeling} and {feeling}",
        "afraid of {plural:animal}",
        "ready to {vp}",
        "able to {vp}",
        "too {feeling} to {vp}",
        "interested in {topic}",
        "the {superlative} {noun:person} in {city}",
        "as {feeling} as {first}",
        "good at {sport}",
        "less {feeling} than {first}",
        "allowed to {vp}",
        "about to {vp}",
        "supposed to {vp}",
    ),
    "predicate_many": (
        "{feeling}",
        "{degree} {feeling}",
        "{plural:person}",
        "{feeling} about {topic}",
        "in {city}",
        "{place_phrase}",
        "younger than {person_object}",
        "{feeling} and {feeling}",
        "afraid of {plural:animal}",
        "ready to {vp}",
        "able to {vp}",
        "interested in {topic}",
        "taller than {first}",
        "both {feeling}",
        "less {feeling} than {first}",
        "likely to {vp}",
        "willing to {vp}",
    ),
    "tail": (
        "right?",
        "okay?",
        "you know.",
        "I think.",
        "I guess.",
        "too.",
        "isn't that right?",
        "don't you think?",
        "as you know.",
        "I suppose.",
        "no doubt.",
        "of course.",
        "if possible.",
        "though.",
        "sir.",
        "everybody.",
        "as far as I can see.",
        "{first}.",
    ),
    "fixed_question": (
        "what is {the:abstract}?",
        "what are you {vp:ing}?",
        "what happened to {thing}?",
        "what happened {past_time}?",
        "where is {the:thing}?",
        "where are the {plural:thing}?",
        "where can I find {thing}?",
        "where did you put {the:thing}?",
        "how much is {the:thing}?",
        "how far is {city} from here?",
        "how many {plural:thing} are there?",
        "how old is {relative}?",
        "how do you feel about {topic}?",
        "how do I {vp:software}?",
        "how is {the:abstract}?",
        "what's wrong with {the:thing}?",
        "is there a {noun:venue} near here?",
        "are there any {plural:thing} {place_phrase}?",
        "is {the:thing} yours?",
        "what do you think of {topic}?",
        "what color is {the:thing}?",
        "whose {noun:thing} is that?",
        "which one do you want?",
        "what's your favorite {noun:abstract}?",
        "when is {the:abstract}?",
        "is it {good} to {vp}?",
        "what made you {vp}?",
        "have you ever {vp:en}?",
        "is that {noun:thing} mine or yours?",
        "what else can we {vp:alone}?",
        "is {first} there?",
        "do you know how to {vp}?",
        "do you know where {the:venue} is?",
        "may I {vp}?",
        "shall we {vp}?",
        "who is {the:person}?",
    ),
    "someone": (
        "{first}",
        "{first}",
        "{first} {last}",
        "{title} {last}",
        "{relative}",
        "{relative}",
        "the {noun:person}",
        "the {noun:person}",
        "that {noun:person}",
        "the {good} {noun:person}",
    ),
    "several_people": (
        "{first} and {first}",
        "{relative} and I",
        "the {plural:person}",
        "my parents",
        "some people",
        "most people",
        "all of us",
        "two of them",
        "the {plural:relative}",
        "many {plural:person}",
        "the other {plural:person}",
        "you and I",
        "the children",
        "both of them",
        "a few {plural:person}",
    ),
    "perfect_time": (
        "since {year}",
        "for {duration}",
        "since {day}",
        "before",
        "so far",
        "recently",
        "lately",
        "for a long time",
        "many times",
    ),
    "present_time": (
        "every day",
        "every {day}",
        "now",
        "these days",
        "on {day}s",
        "in the morning",
        "at night",
        "at the moment",
        "today",
        "every year",
        "twice a week",
        "all the time",
    ),
    "who_question": (
        "who {vp:past}?",
        "who is {vp:ing}?",
        "who will {vp}?",
        "who wants to {vp}?",
        "whose {noun:thing} is this?",
        "who has {vp:en}?",
        "which {noun:person} {vp:past}?",
        "who can {vp}?",
    ),
    "asked_thing": ("which {noun:thing}", "what", "how many {plural:thing}", "what kind of {noun:thing}"),
    "asked_abstract": ("what", "which {noun:abstract}", "what sort of {noun:abstract}"),
    "asked_document": ("which {noun:document}", "what", "whose {noun:document}"),
    "asked_food": ("what", "how much {food}"),
    "question_word": (
        "why",
        "why",
        "when",
        "where",
        "how",
        "how often",
        "how long",
        "how come",
        "since when",
        "why on earth",
    ),
    "conjunction": (
        "when",
        "if",
        "because",
        "while",
        "before",
        "after",
        "although",
        "unless",
        "as soon as",
        "since",
        "whenever",
        "even though",
        "once",
        "though",
        "until",
    ),
    "joint": ("and", "and", "but", "but", "so", "or", "because", "yet", "and then"),
    "many": (
        "my",
        "your",
        "his",
        "her",
        "our",
        "their",
        "the",
        "these",
        "those",
        "some",
        "many",
        "several",
        "a few",
        "both",
        "all the",
        "most",
        "other",
        "such",
        "a lot of",
        "two",
        "three",
        "four",
        "five",
        "ten",
        "a couple of",
        "lots of",
        "fewer",
        "various",
        "plenty of",
    ),
    "while": (
        "half an hour",
        "an hour and a half",
        "a few minutes",
        "a couple of days",
        "a while",
        "a minute",
        "a second",
        "a week",
        "a long time",
        "a year or two",
        "several months",
    ),
    "one": (
        "the",
        "the",
        "the",
        "the",
        "the",
        "the",
        "a",
        "a",
        "a",
        "a",
        "a",
        "my",
        "your",
        "his",
        "her",
        "our",
        "their",
        "this",
        "that",
        "another",
        "every",
        "one",
        "each",
        "{first}'s",
        "{first}'s",
    ),
    "this": ("the", "the", "this", "that", "my", "your", "his", "her", "our", "their"),
    "relative": tuple(
        f"{whose} {name}" for whose in ("my", "my", "your", "his", "her", "our", "their") for name in RELATIVES
    ),
}
